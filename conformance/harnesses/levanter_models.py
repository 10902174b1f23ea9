"""Two models for Levanter's engine, each with a cache-free reference.

The right answer of `weighing` is known by hand: the next token is 1 more than the sum of the text,
each token times an odd number that depends on its position, modulo 97. It stores that product and
reads the sum back through the paged cache, so that one cell that is lost, wrong or read twice
changes the next token. `llama` is Levanter's own Llama with random weights, two layers, and two KV
heads for four query heads; its reference is its own dense forward pass over the whole text.

Float sums in another order differ in their last bits, so two nearly equal scores may change places.
Where the best two of the dense pass are nearer than TIE, the next token is undecided: such a
request is left out, and counted. TIE is far above the float32 error of scores of this size.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from functools import cache
from importlib import import_module
from sys import modules
from types import ModuleType
from typing import Any, Final

from attrs import frozen

from conformance.engines.levanter_calls import installed_root
from spec.vocabulary import Tokens

WORDS: Final = 97
TIE: Final = 1e-3
HEAD: Final = 8
STAND_INS: Final[Mapping[str, Mapping[str, object]]] = {
    "levanter.tracker": {},
    "levanter.models.loss": {"maybe_fused_next_token_loss": None},
    "levanter.compat": {},
    "levanter.compat.hf_checkpoints": dict.fromkeys(("HFCheckpointConverter", "HFCompatConfig")),
    "levanter.compat.hf_config": dict.fromkeys(("hf_config_from_kwargs", "hf_rope_config")),
    "levanter.utils.logging": {"silence_transformer_nag": nullcontext},
    "rigging": {},
    "rigging.filesystem": {},
    "rigging.filesystem.factory": {"open_url": None},
    "transformers": dict.fromkeys(("LlamaConfig", "PretrainedConfig")),
}
"""Modules for logging, training and conversion, with their names; serving uses none of them."""


class _Unused:
    """A stand-in for a class that is only named: as a base, or with a subscript."""

    def __class_getitem__(cls, _: object) -> type:
        return cls


@frozen(eq=False)
class Model:
    """served: the model that Levanter runs. next_token: after a text; None for a near-tie."""

    served: Any
    next_token: Callable[[Tokens], int | None]


@cache
def prepare() -> None:
    """Make the serving code importable without training code.

    Raises InvalidInput without Levanter.
    """
    levanter = ModuleType("levanter")
    levanter.__path__ = [str(installed_root())]
    modules["levanter"] = levanter
    for name, contents in STAND_INS.items():
        module = ModuleType(name)
        module.__path__ = []
        vars(module).update({key: value or _Unused for key, value in contents.items()})
        modules[name] = module


@frozen(eq=False)
class _Weighing:
    """The model in Levanter's protocol.

    np, nn, hax: modules. pages, attend: its cache, attention.
    """

    np: Any
    nn: Any
    hax: Any
    pages: Any
    attend: Any

    @property
    def Vocab(self) -> Any:  # noqa: N802 - its name
        """The tokens."""
        return self.hax.Axis("vocab", WORDS)

    def initial_cache(self, spec: Any, *, dtype: Any) -> Any:
        """One head."""
        axis = self.hax.Axis
        return self.pages.init(spec, axis("kv_head", 1), axis("head_size", HEAD), dtype=dtype)

    def decode(self, tokens: Any, kv: Any, info: Any, positions: Any) -> tuple[Any, Any]:
        """Attention with equal scores is a mean; times the length it is the sum."""
        count = tokens.axis_size("position")
        product = ((2 * positions.array + 1) * tokens.array % WORDS).astype(self.np.float32)
        stored = self.hax.named(
            self.np.broadcast_to(product[:, None, None], (count, 1, HEAD)),
            ("position", "kv_head", "head_size"),
        )
        kv = kv.update(info, stored, stored)
        query = self.hax.zeros(
            {"position": count, "kv_head": 1, "q_heads_per_group": 1, "head_size": HEAD}
        )
        batch = info.seq_lens, info.page_indices, info.cu_q_lens, info.num_seqs
        mean = self.attend(query, kv.kv_pages, *batch).array[:, 0, 0, 0]
        total = self.np.round(mean * (positions.array + 1)).astype(self.np.int32)
        scores = self.nn.one_hot((total + 1) % WORDS, WORDS)
        return self.hax.named(scores, ("position", "vocab")), kv


@cache
def weighing(_length: int) -> Model:
    """The model of sums, for any length."""
    prepare()
    jax = import_module("jax")
    jax.tree_util.register_static(_Weighing)
    served = _Weighing(
        np=jax.numpy,
        nn=jax.nn,
        hax=import_module("haliax"),
        pages=import_module("levanter.layers.kv_cache").KvPageCache,
        attend=import_module("levanter.layers.attention").ragged_paged_attention,
    )
    return Model(served, sum_after)


def sum_after(text: Tokens) -> int:
    """The next token of `weighing` after a text."""
    return (1 + sum((2 * position + 1) * token for position, token in enumerate(text))) % WORDS


@cache
def llama(length: int) -> Model:
    """A small Llama for texts up to this length."""
    prepare()
    library = import_module("levanter.models.llama")
    jax, hax = import_module("jax"), import_module("haliax")
    names = {field.name for field in fields(library.LlamaConfig)}
    sizes = {"hidden_dim": 32, "intermediate_dim": 64, "num_heads": 4, "num_kv_heads": 2}
    sizes |= {"num_layers": 2, "max_seq_len" if "max_seq_len" in names else "seq_len": length}
    config = library.LlamaConfig(**sizes, gradient_checkpointing=False)
    vocabulary = hax.Axis("vocab", 64)
    served = library.LlamaLMHeadModel.init(vocabulary, config, key=jax.random.key(0))
    causal = import_module("levanter.layers.attention").AttentionMask.causal()
    dense = import_module("equinox").filter_jit(
        lambda model, tokens: model(hax.named(tokens, "position"), causal).array
    )

    @cache
    def next_token(text: Tokens) -> int | None:
        padded = (*text, *[0] * (length - len(text)))  # which a causal mask does not let it see
        scores = dense(served, jax.numpy.array(padded))[len(text) - 1].tolist()
        second, first = sorted(scores)[-2:]
        best: int = scores.index(first)
        return best if first - second > TIE else None

    return Model(served, next_token)
