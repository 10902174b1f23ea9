"""The Pallas kernels in a traced program: parameters, memory and cores."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import prod
from typing import Any, Final, Protocol

import jax
import numpy as np

_ADDRESS: Final = re.compile("0x[0-9a-f]+")
"""Of a function, which is another one in each process."""


class Reference(Protocol):
    """What a kernel reads or writes, and the memory that it lies in."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        ...

    @property
    def size(self) -> int:
        """How many numbers."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a number; that of a semaphore has no size."""
        ...

    @property
    def memory_space(self) -> object:
        """Which memory; its text is the name."""
        ...


def kernels(program: object) -> Iterator[Mapping[str, Any]]:
    """The parameters of every kernel of a traced program."""
    program = getattr(program, "jaxpr", program)
    for equation in getattr(program, "eqns", ()):
        if equation.primitive.name == "pallas_call":
            yield equation.params
            continue
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                yield from kernels(part)


def fingerprint(program: object) -> str:
    """A digest of a traced program: of its text, and of every parameter and constant in it.

    The text alone leaves parameters out, the stride of a read among them. Raises ValueError for a
    parameter that is a function of values which it holds, as of a callback: they are not seen.
    """
    found = hashlib.sha256()
    for part in _parts(program):
        if isinstance(part, np.ndarray | jax.Array):
            found.update(f"{part.dtype} {part.shape}".encode() + np.asarray(part).tobytes())
        elif getattr(part, "__closure__", None):
            raise ValueError(f"{part} holds values that a digest does not see")
        else:
            found.update(_ADDRESS.sub("", str(part)).encode() + b"\0")
    return found.hexdigest()


def _parts(value: object) -> Iterator[object]:
    """The programs in a value, and their constants and parameters down to the last part."""
    inside: Iterable[object]
    if hasattr(value, "eqns"):
        yield str(value)
        consts = getattr(value, "consts", ())
        inside = (*consts, *(equation.params for equation in value.eqns))
    elif isinstance(value, Mapping):
        yield sorted(map(str, value))
        inside = value.values()
    elif is_dataclass(value):
        inside = (getattr(value, each.name) for each in fields(value))
    elif isinstance(value, tuple | list):
        yield len(value)
        inside = value
    else:
        yield value
        return
    for part in inside:
        yield from _parts(part)


def references(program: object) -> Iterator[Reference]:
    """The buffers that every kernel of a traced program reads and writes, with their memory."""
    for kernel in kernels(program):
        for variable in kernel["jaxpr"].invars:
            if hasattr(variable.aval, "memory_space"):
                yield variable.aval


def cores(program: object, *, most: int) -> int:
    """The number of cores of a device that the program uses, that of its most parallel kernel.

    A kernel is split along the parallel axes of its grid, and along no others. most: cores of the
    device. A program without kernels has none.
    """
    return max((min(most, _parallel(kernel)) for kernel in kernels(program)), default=0)


def _parallel(kernel: Mapping[str, Any]) -> int:
    kinds = getattr(kernel["compiler_params"], "dimension_semantics", None) or ()
    sizes = zip(kernel["grid_mapping"].grid, kinds, strict=False)
    return prod(size for size, kind in sizes if getattr(kind, "value", kind) == "parallel")
