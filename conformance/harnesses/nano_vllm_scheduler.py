"""The adapter of nano-vllm's scheduler with its block manager, without its worker or a model.

    make engine-nano-vllm

`schedule()` plans a step, `postprocess()` delivers it, as its engine does one after the other. What
its worker gets of a sequence is what `Sequence.__getstate__` sends: all tokens with a prompt, and
the last one otherwise.

nano-vllm has no call that aborts a request or forgets what is cached, ends a request at one token
that is the same for all, and does not look at the length of its model: the adapter caps what a
request may generate. Its package is not imported, since that would load its kernels; of its
configuration the scheduler reads five numbers.
"""

import sys
from collections import deque
from collections.abc import Mapping, Sequence, Set
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from conformance.engines import drift, parents
from conformance.harnesses.planned import Drawn, Finished, Group, Key, Plan, Row
from conformance.harnesses.plans import ABORT, FORGET
from conformance.harnesses.workloads import Broken
from spec.vocabulary import FinishReason, InvalidInput, Request, Tokens

PACKAGE: Final = "nano-vllm"
REMEDY: Final = "Run `make engine-nano-vllm`: it installs a commit of it in a place of its own."
SIZE: Final = 2
_ROOT: Final = "nanovllm"
_SCHEDULER: Final = "nanovllm.engine.scheduler"
_SEQUENCE: Final = "nanovllm.engine.sequence"
CALLS: Final[Mapping[str, Sequence[str]]] = {
    f"{_SCHEDULER}:Scheduler": ("config",),
    f"{_SCHEDULER}:Scheduler.add": ("self", "seq"),
    f"{_SCHEDULER}:Scheduler.schedule": ("self",),
    f"{_SCHEDULER}:Scheduler.postprocess": ("self", "seqs", "token_ids", "is_prefill"),
    f"{_SEQUENCE}:Sequence": ("token_ids", "sampling_params"),
}
"""The calls, with the parameters of commit bb823b3."""


def make() -> "Scheduler":
    """A scheduler over 16 blocks of two tokens."""
    return Scheduler()


class Scheduler:
    """See `conformance.harnesses.planned.Schedules`. Raises InvalidInput without nano-vllm."""

    groups: Sequence[Group] = (Group(SIZE),)
    pages, slots, tokens, max_len = 16, 3, 15, 32
    lag, drafts, stops, priorities, contexts = 0, 0, 0, False, False
    lacks: Set[str] = frozenset({ABORT, FORGET, "chunks beside decodes", "stopped"})

    def __init__(self) -> None:
        _load()
        self._sequences = import_module(_SEQUENCE)
        self._params = import_module("nanovllm.sampling_params").SamplingParams
        self._sequences.Sequence.block_size = SIZE
        self.scheduler = import_module(_SCHEDULER).Scheduler(
            SimpleNamespace(
                max_num_seqs=self.slots,
                max_num_batched_tokens=self.tokens,
                eos=-1,
                kvcache_block_size=SIZE,
                num_kvcache_blocks=self.pages,
            )
        )
        self._names, self._asked = dict[int, int](), list[Any]()
        self._open = deque[tuple[Sequence[Any], bool]]()

    def arrive(self, request: Request, *, priority: int, context: int) -> None:
        """Queue a request; nano-vllm has no priorities, and no context beside the tokens."""
        del priority, context
        most = min(request.params.max_new, self.max_len - len(request.prompt))
        params = self._params(temperature=1.0, max_tokens=most, ignore_eos=True)
        asked = self._sequences.Sequence(list(request.prompt), params)
        self._names[asked.seq_id] = request.id
        self._asked.append(asked)
        self.scheduler.add(asked)

    def abort(self, requests: Sequence[int]) -> None:
        """Refused: see `lacks`."""
        raise _lacking(ABORT, requests)

    def forget(self, *, preempts: bool) -> bool:
        """Refused: see `lacks`."""
        raise _lacking(FORGET, preempts)

    def dispatch(self) -> Plan:
        """Plan a step, if there is something to serve: its engine does not ask else."""
        if self.scheduler.is_finished():
            return ()
        planned, prefills = self.scheduler.schedule()
        self._open.append((planned, prefills))
        return tuple(self._row(one, prefills=prefills) for one in planned)

    def deliver(self, drawn: Mapping[int, Drawn]) -> Mapping[int, Finished]:
        """Deliver the step; a prompt that is not read to its end has a token too, which is none."""
        planned, prefills = self._open.popleft()
        names = [self._names[one.seq_id] for one in planned]
        tokens = [drawn[name].tokens[0] if name in drawn else 0 for name in names]
        self.scheduler.postprocess(planned, tokens, prefills)
        return {
            name: Finished(tuple(one.completion_token_ids), FinishReason.LIMIT)
            for name, one in zip(names, planned, strict=True)
            if one.is_finished
        }

    def published(self) -> Mapping[int, Key]:
        """The blocks that a lookup finds, each of which is one of some request's text."""
        manager, found, known = self.scheduler.block_manager, dict[int, Key](), dict[int, Tokens]()
        for asked in self._asked:
            text, key = tuple(asked.token_ids), -1
            for end in range(SIZE, len(text) + 1, SIZE):
                key = manager.compute_hash(list(text[end - SIZE : end]), key)
                known[key] = text[:end]
        for key, block in manager.hash_to_block_id.items():
            if key not in known:
                raise Broken("PC", f"page {block} is published under a key of no request's text")
            found[block] = 0, 0, known[key]
        return found

    def is_busy(self) -> bool:
        """Whether it has sequences that have not ended."""
        return not self.scheduler.is_finished()

    def held(self) -> Sequence[int]:
        """The blocks in use."""
        return sorted(self.scheduler.block_manager.used_block_ids)

    def known(self) -> Sequence[int]:
        """None: its worker keeps nothing of a request from one step to the next."""
        return ()

    def _row(self, one: Any, *, prefills: bool) -> Row:
        start = one.num_cached_tokens if prefills else len(one) - 1
        text = tuple(one.token_ids) if prefills else None
        tables = (tuple(one.block_table),)
        return Row(self._names[one.seq_id], tables, start, one.num_scheduled_tokens, text)


def _lacking(kind: str, seen: object) -> InvalidInput:
    return InvalidInput(
        f"{kind} of nano-vllm",
        seen=seen,
        allowed="no such call",
        remedy="Ask a scheduler for nothing that it lacks.",
    )


def _load() -> None:
    """Make its scheduler importable; once."""
    if _ROOT in sys.modules:
        return
    found = find_spec(_ROOT)
    if found is None or found.origin is None:
        raise InvalidInput(
            PACKAGE, seen="no module nanovllm", allowed="nano-vllm, installed", remedy=REMEDY
        )
    parents.register(Path(found.origin).parent, (_ROOT, "nanovllm.engine"))
    stands_in = ModuleType("nanovllm.config")
    stands_in.Config = SimpleNamespace  # type: ignore[attr-defined]
    sys.modules["nanovllm.config"] = stands_in
    drift.require(PACKAGE, CALLS, remedy=REMEDY)
