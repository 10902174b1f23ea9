"""The findings in Levanter, reproduced with Levanter alone: nothing of kvspec is imported here.

    .venv-levanter/bin/python docs/findings/levanter_alone.py            # every finding
    .venv-levanter/bin/python docs/findings/levanter_alone.py clones     # one of them

    .venv-levanter-2025/bin/python docs/findings/levanter_alone.py       # the same of autumn 2025

`make engine-levanter` makes that environment, and `make engine-levanter-2025` the other. Exit
status 0: all findings of this release are still there. 1: one is gone.

The engine is Levanter's own `InferenceEngine`, with its page table, its cache, its attention and
its sampler at temperature 0. The model is a small one, whose right answer is known by hand: the
next token is the sum of the whole text, plus 1, modulo 23. It stores each token as K and V and
reads the sum back through the paged cache, so that a cell that is lost or wrong changes the text.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def stand_in(name: str, path: Path | None = None, **contents: object) -> None:
    """Register a package whose own imports are not wanted, or a module that is not used here."""
    module = ModuleType(name)
    module.__path__ = [str(path)] if path else []
    vars(module).update(contents)
    sys.modules[name] = module


found = find_spec("levanter")
if found is None or not found.submodule_search_locations:
    sys.exit("levanter is not installed here; run make engine-levanter")
root = Path(found.submodule_search_locations[0])
stand_in("levanter", root)
for part in ("inference", "layers", "models", "utils"):
    stand_in(f"levanter.{part}", root / part)
stand_in("levanter.tracker")  # reports profiles
stand_in("levanter.models.lm_model", LmHeadModel=object)  # a base class of models
stand_in("rigging")
stand_in("rigging.filesystem")
stand_in("rigging.filesystem.factory", open_url=None)  # writes profiles

import equinox as eqx  # noqa: E402
import haliax as hax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from levanter.inference.engine import (  # noqa: E402
    InferenceEngine,
    InferenceEngineConfig,
    Request,
)
from levanter.inference.jit_scheduler import SeqDecodingParams, SequenceTable  # noqa: E402
from levanter.inference.page_table import PageTable  # noqa: E402
from levanter.layers.attention import ragged_paged_attention  # noqa: E402
from levanter.layers.kv_cache import KvPageCache  # noqa: E402

logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # `answer` reports exceptions
WORDS = 23


class Summing(eqx.Module):
    """The next token is the sum of the text, plus 1, modulo WORDS."""

    @property
    def Vocab(self) -> hax.Axis:  # noqa: N802 - its name
        """The axis of token ids."""
        return hax.Axis("vocab", WORDS)

    def initial_cache(self, spec: object, *, dtype: object) -> KvPageCache:
        """An empty cache with one head."""
        return KvPageCache.init(spec, hax.Axis("kv_head", 1), hax.Axis("head_size", 8), dtype=dtype)

    def decode(self, tokens: object, cache: object, info: object, positions: object) -> tuple:
        """Decode with equal scores: attention is a mean, which times the length is the sum."""
        count = tokens.axis_size("position")
        axes = ("position", "kv_head", "head_size")
        stored = jnp.broadcast_to(tokens.array[:, None, None].astype(jnp.float32), (count, 1, 8))
        cache = cache.update(info, hax.named(stored, axes), hax.named(stored, axes))
        query = hax.zeros({"position": count, "kv_head": 1, "q_heads_per_group": 1, "head_size": 8})
        mean = ragged_paged_attention(
            query,
            cache.kv_pages,
            info.seq_lens,
            info.page_indices,
            info.cu_q_lens,
            info.num_seqs,
        )
        total = jnp.round(mean.array[:, 0, 0, 0] * (positions.array + 1)).astype(jnp.int32)
        return hax.named(jax.nn.one_hot((total + 1) % WORDS, WORDS), ("position", "vocab")), cache


def right(prompt: list[int], count: int) -> list[int]:
    """The tokens that must follow a prompt."""
    text = list(prompt)
    for _ in range(count):
        text.append((sum(text) + 1) % WORDS)
    return text[len(prompt) :]


def engine(**sizes: int) -> InferenceEngine:
    """A small engine."""
    small = {"max_seq_len": 32, "page_size": 4, "max_seqs": 4, "max_pages": 32, "max_rounds": 4}
    config = InferenceEngineConfig(
        **{"max_queued_tokens": 16, "max_seqs_in_prefill": 4, **small, **sizes},
        compute_dtype=jnp.float32,
    )
    return InferenceEngine.from_model_with_config(Summing(), None, config)


def request(
    prompt: list[int], new: int, *, choices: int = 1, name: int = 0, stop: list[int] | None = None
) -> Request:
    """A request; Levanter's limit counts the prompt too."""
    most = jnp.array(len(prompt) + new, jnp.int32)
    params = replace(SeqDecodingParams.default(), max_num_tokens=most)
    if stop is not None:
        sequences = hax.named(jnp.array([stop], jnp.int32), ("stop_seq", "position"))
        params = replace(params, stop_tokens=sequences)
    return Request(prompt, name, params, choices)


def answer(made: InferenceEngine, *requests: Request) -> list[list[int]] | str:
    """The tokens of each choice, or the name of the exception."""
    try:
        return made.generate(list(requests)).tokens
    except Exception as error:
        return "out of pages" if "Out of free pages" in str(error) else type(error).__name__


def clones() -> bool:
    """A second choice does not see the full pages of its prompt."""
    good = True
    for prompt in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]):
        made = engine()
        got = answer(made, request(prompt, 6, choices=2))
        print(f"  prompt of {len(prompt)}, page size 4: right is {right(prompt, 6)}, both times")
        print(f"    got {got}")
        good = good and got == [right(prompt, 6)] * 2
    pages = made.gen_state.decode_state
    named = pages.sequences.page_indices.array.tolist()
    print(f"    pages named by rows: {sorted(page for row in named for page in row if page < 32)}")
    print(f"    pages counted as held: {jnp.flatnonzero(pages.page_table.page_ref_counts.array)}")
    return not good


def past_the_row() -> bool:
    """A sequence goes on past max_seq_len, over its own last page, and takes others' pages."""
    prompt, short = [1, 2, 3, 4, 5], [1, 2, 3, 4]
    made = engine(max_seq_len=8, max_pages=8, max_seqs=2)
    got = answer(made, request(prompt, 20))
    print(f"  max_seq_len 8, a prompt of 5: right is at most 3 tokens, {right(prompt, 3)}")
    print(f"    got {got}; with room for them, right were {right(prompt, 9)}")
    made = engine(max_seq_len=8, max_pages=4, max_seqs=2)
    alone = answer(made, request(short, 4, name=1))
    made = engine(max_seq_len=8, max_pages=4, max_seqs=2)
    both = answer(made, request(short, 20), request(short, 4, name=1))
    print(f"  a request that fits, alone: {alone}; beside one that does not stop: {both}")
    return len(got[0]) > 3 and both == "out of pages"


def lost() -> bool:
    """After one batch that did not fit, the engine answers no request any more."""
    made = engine(max_pages=2, max_seqs=2)
    before = answer(made, request([1, 2, 3], 2))
    refused = answer(made, request(list(range(1, 11)), 4))
    after = answer(made, request([1, 2, 3], 2))
    print(f"  3 tokens: {before}; then 10 tokens in 2 pages of 4: {refused}; 3 tokens: {after}")
    return before != after


def unanswered() -> bool:
    """Requests that do not fit into one prefill get no tokens, and no error."""
    four = answer(engine(), *(request([1, 2, 3], 2, name=name) for name in range(6)))
    print(f"  6 requests, 4 slots: {four}")
    prompt = list(range(1, 13))
    long = answer(engine(), *(request(prompt, 2, name=name) for name in range(4)))
    print(f"  4 prompts of 12, 4 slots, max_seq_len 32: {long}")
    return [] in four or [] in long


def rounds() -> bool:
    """The number of generated tokens depends on max_rounds and max_tokens_per_round."""
    prompt, wanted = [1, 2, 3], right([1, 2, 3], 13)
    print(f"  max_seq_len 16, two prompts of 3, 13 tokens each, right is {wanted}")
    good = True
    for sizes in ({}, {"max_tokens_per_round": 1}, {"max_rounds": 9}, {"max_rounds": 32}):
        made = engine(**{"max_seq_len": 16, "max_rounds": 4, **sizes})
        got = answer(made, request(prompt, 13, name=0), request(prompt, 13, name=1))
        print(f"    {sizes or 'max_rounds 4'}: {[len(tokens) for tokens in got]} tokens: {got}")
        good = good and got == [wanted, wanted]
    return not good


def reserve() -> bool:
    """A slot out of range is handed out, and nothing is reserved."""
    table, slot = SequenceTable.init(3, 2, 4).reserve_slot(3)
    print(f"  reserve_slot(3) of 3 slots: slot {int(slot)}, used {table.used_mask.array.tolist()}")
    return int(slot) == 3 and not table.used_mask.array.any()


def destination() -> bool:
    """The page table gives the first position past a row the cell of an earlier one."""
    table, pages = SequenceTable.init(1, 2, 4), PageTable.init(4, 1, 4, 2)
    table, _ = table.reserve_slot(0)
    for first, last in ((0, 8), (8, 9)):
        positions = hax.named(jnp.arange(first, last, dtype=jnp.int32), "position")
        slots = hax.named(jnp.zeros(last - first, jnp.int32), "position")
        table, pages, info = table.allocate_for_seq(pages, slots, positions)
        cells = info.new_token_dests.array.tolist()
        print(f"  positions {first} to {last - 1}: cells {cells}")
    print(f"    row {table.page_indices.array.tolist()}, counts {pages.page_ref_counts.array}")
    return cells == [4]


def reset() -> bool:
    """A reset after a call of generate leaves an engine that answers nothing."""
    made = engine()
    before = answer(made, request([1, 2, 3], 2))
    made.reset()
    after = answer(made, request([1, 2, 3], 2))
    print(f"  3 tokens: {before}; after a reset: {after}")
    return before != after


def refused_stays() -> bool:
    """A refused request stays in the queue, spoils the next call, and costs a slot for good."""
    made, told = engine(), []
    too_long = request([1, 2, 3], 2, stop=list(range(17)))
    for _ in range(4):
        told.append([answer(made, one) for one in (too_long, request([1, 2, 3], 2))])
        print(f"  a stop sequence of 17 tokens, 16 are allowed; then none: {told[-1]}")
    after = answer(made, request([1, 2, 3], 2))
    print(f"  4 slots, and after 4 refusals: {after}; right is {[right([1, 2, 3], 2)]}")
    return told[0][1] == "ValueError" and after == [[]]


def leftover() -> bool:
    """Waiting requests get the rounds that are left; the next call continues them as another's."""
    made = engine(max_seq_len=16, max_seqs=2)
    got = answer(made, *(request([1, 2, 3], 13, name=name) for name in range(5)))
    print(f"  5 requests of 13 tokens, 2 slots: {[len(tokens) for tokens in got]} tokens")
    after = answer(made, request([5], 2, name=2))
    print(f"  then one of 2 tokens: {after}; right is {[right([5], 2)]}")
    return [len(tokens) for tokens in got] != [13] * 5 and after != [right([5], 2)]


QUEUES = hasattr(InferenceEngine, "enqueue_requests")
"""Whether requests without a slot wait for one, as in the release of autumn 2025."""
BOTH = (clones, past_the_row, destination, lost, rounds, reserve)
CASES: dict[str, Callable[[], bool]] = {
    case.__name__.replace("_", "-"): case
    for case in (*BOTH, *((reset, refused_stays, leftover) if QUEUES else (unanswered,)))
}


def main(names: list[str]) -> int:
    """Run the cases named, or all; 1 if one is gone."""
    gone = []
    for name in names or CASES:
        print(f"{name}: {CASES[name].__doc__}")
        if not CASES[name]():
            gone.append(name)
    print(f"gone: {', '.join(gone)}" if gone else "all are there")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
