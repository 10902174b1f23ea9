"""The kernel under test: a function with the interface of ragged paged attention.

Its arrays are those of `impl.attention.reference.ragged_paged_attention`, in that order, with
num_seqs i32[1]. Its other parameters are read from its signature.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from attrs import frozen

from conformance.kernels.batches import Options
from spec.vocabulary.errors import InvalidInput

KNOWN: Final = {
    "reference": "impl.attention.reference:ragged_paged_attention",
    "tpu": "impl.attention.tpu:ragged_paged_attention",
    "jax": "jax.experimental.pallas.ops.tpu.ragged_paged_attention:ragged_paged_attention",
    "tpu-inference": "conformance.kernels.tpu_inference:ragged_paged_attention",
}
"""Short names. `jax` is the kernel of jax itself; the last goes through our wrapper."""
OURS: Final = "tpu"
"""Our own Pallas kernel, which keeps no state and does the same when it is traced."""
INSTALLED: Final = {"tpu-inference": "tpu_inference"}
"""Required modules by short name; kvspec does not depend on them."""
APPENDING: Final = {
    "reference": "impl.attention.appending:append_and_attend",
    "tpu": "impl.attention.tpu:append_and_attend",
}
"""Variants that write new cells as well, where that is another function."""
NEW_CELLS: Final = ("keys", "values")
"""By these names a function takes K and V of the queries' own tokens; it then returns the pool too.
"""
TOLD: Final = ("chip", "page_size")
"""What a function receives if it has such a parameter."""
WRAPPED: Final = frozenset({KNOWN["tpu-inference"]})
"""Our wrappers: each brings the pool into the shape of its kernel at every call."""
OF_ROWS: Final = frozenset({KNOWN[OURS], APPENDING[OURS]})
"""Functions that take the pool in the shape of `impl.cache.rows`."""
DESTINATIONS: Final = "destinations"
"""By this name our own functions take the cells of these tokens."""
ARRAYS: Final = frozenset({*NEW_CELLS, DESTINATIONS, "sinks", "attention_sink", "scales"})
"""Parameters by name alone that are arrays."""
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "scale": ("scale", "sm_scale"),
    "soft_cap": ("soft_cap",),
    "sliding_window": ("sliding_window",),
    "k_scale": ("k_scale",),
    "v_scale": ("v_scale",),
    "sinks": ("sinks", "attention_sink"),
    "scales": ("scales",),
}
"""The options of a case, and the names that functions have for them; the first is ours."""
NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


@frozen
class Subject:
    """One function. names: for each supported option, the function's name of it.

    told: those of TOLD that it takes. of_rows: whether its pool has the shape of
    `impl.cache.rows`. is_wrapped: whether it is one of WRAPPED. uncompiled: what can be traced,
    where that is another function.
    """

    name: str
    function: Callable[..., object]
    names: Mapping[str, str]
    told: frozenset[str] = frozenset()
    of_rows: bool = False
    is_wrapped: bool = False
    uncompiled: Callable[..., object] | None = None

    def lacks(self, options: Iterable[str]) -> list[str]:
        """Those of these options that are not supported, by our name."""
        return [name for name in options if name not in self.names]

    def call(
        self,
        *arrays: object,
        options: Options,
        optional: Mapping[str, object] = NOTHING,
        **own: object,
    ) -> object:
        """The answer [T, q_heads, head_dim].

        arrays: with the pool as it takes it. optional: arrays that are asked for, by our names.
        own: arguments of its own, such as blocks, and those of TOLD, which are passed on if it
        takes them.
        """
        asked = {self.names[name]: value for name, value in {**options, **optional}.items()}
        left_out = {*TOLD} - self.told
        told = {name: value for name, value in own.items() if name not in left_out}
        return self.function(*arrays, **asked, **told)

    @property
    def settings(self) -> tuple[str, ...]:
        """The parameters by name alone that are no arrays."""
        parameters = inspect.signature(self.function).parameters.values()
        names = (one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
        return tuple(name for name in names if name not in ARRAYS)


def find(name: str) -> Subject:
    """The function of a short name or MODULE:FUNCTION. Raises InvalidInput."""
    return _found(name, KNOWN.get(name, name))


def find_appending(name: str) -> Subject | None:
    """The variant that also writes new cells `[T, kv_heads, head_dim]`, if there is one.

    It takes them by the names of NEW_CELLS, in the dtype of the pool, and returns its answer and
    the pool. Raises InvalidInput.
    """
    found = _found(name, APPENDING.get(name, KNOWN.get(name, name)))
    takes = inspect.signature(found.function).parameters
    return found if all(one in takes for one in NEW_CELLS) else None


def _found(name: str, where: str) -> Subject:
    module_name, colon, attribute = where.partition(":")
    allowed = f"MODULE:FUNCTION, or one of {', '.join(KNOWN)}"
    if not (module_name and colon and attribute):
        raise InvalidInput(
            "kernel", seen=name, allowed=allowed, remedy="Name a function that can be imported."
        )
    if name in INSTALLED and importlib.util.find_spec(INSTALLED[name]) is None:
        raise InvalidInput(
            "kernel",
            seen=f"{name}, and no module {INSTALLED[name]}",
            allowed=f"{name} where it is installed; {', '.join(KNOWN)}",
            remedy="Run `make compare`, or pip install --no-deps the versions of its lock file.",
        )
    if "" not in sys.path:  # modules beside the caller are found too
        sys.path.append("")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name in {"jax", "jaxlib", "numpy"}:
            raise  # the command says which extra installs it
        raise _unusable(name, allowed, error) from None
    except Exception as error:  # a module of the user's may raise anything
        raise _unusable(name, allowed, error) from None
    if not callable(function):
        raise _unusable(name, allowed, "it is not callable")
    takes = inspect.signature(function).parameters
    anything = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    names = {ours: theirs for ours, every in OPTIONS.items() for theirs in every if theirs in takes}
    if anything:
        names = {ours: ours for ours in OPTIONS} | names
    told = frozenset(TOLD).intersection(takes)
    return Subject(
        name, function, names, told, of_rows=where in OF_ROWS, is_wrapped=where in WRAPPED
    )


def _unusable(name: str, allowed: str, why: object) -> InvalidInput:
    words = str(why) or type(why).__name__
    return InvalidInput("kernel", seen=name, allowed=allowed, remedy=f"It is unusable: {words}.")
