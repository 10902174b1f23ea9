"""What is put to the bench: a function with the interface of ragged paged attention.

Its arrays are those of `impl.attention.reference.ragged_paged_attention`, in that order, with
num_seqs i32[1]. What else it takes is read off its signature.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
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
"""Short names. `jax` is the kernel that comes with it; the last is called as that module says."""
INSTALLED: Final = {"tpu-inference": "tpu_inference"}
"""By short name, the distribution and module that has to be there; kvspec does not depend on it."""
APPENDING: Final = {
    "reference": "impl.attention.appending:append_and_attend",
    "tpu": "impl.attention.tpu:append_and_attend",
}
"""Those that write new cells as well, where that is another function."""
NEW_CELLS: Final = ("keys", "values")
"""By these names a function takes K and V of the queries' own tokens; it then returns the pool too.
"""
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "scale": ("scale", "sm_scale"),
    "soft_cap": ("soft_cap",),
    "sliding_window": ("sliding_window",),
    "k_scale": ("k_scale",),
    "v_scale": ("v_scale",),
}
"""What a case may ask for, and under which names functions take it; the first is ours."""


@frozen
class Subject:
    """One function. names: for each option that it takes, the name that it takes it by.

    told_chip: whether it takes `chip`, the name of the chip that it is compiled for.
    """

    name: str
    function: Callable[..., object]
    names: Mapping[str, str]
    told_chip: bool

    def lacks(self, options: Options) -> list[str]:
        """The options, by our name, that it does not take."""
        return [name for name in options if name not in self.names]

    def call(self, *arrays: object, options: Options, **own: object) -> object:
        """What it answers [T, q_heads, head_dim].

        own: arguments of its own, such as blocks, and `chip`, which it is given if it takes it.
        """
        asked = {self.names[name]: value for name, value in options.items()}
        told = {name: value for name, value in own.items() if name != "chip" or self.told_chip}
        return self.function(*arrays, **asked, **told)


def find(name: str) -> Subject:
    """The function of a short name or MODULE:FUNCTION. Raises InvalidInput."""
    return _found(name, KNOWN.get(name, name))


def find_appending(name: str) -> Subject | None:
    """The same that also writes new cells, if there is one: `[T, kv_heads, head_dim]` by the names
    of NEW_CELLS, in the dtype of the pool. It returns its answer and the pool. Raises InvalidInput.
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
    return Subject(name, function, names, "chip" in takes)


def _unusable(name: str, allowed: str, why: object) -> InvalidInput:
    words = str(why) or type(why).__name__
    return InvalidInput("kernel", seen=name, allowed=allowed, remedy=f"It has no use: {words}.")
