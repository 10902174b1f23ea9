"""The Pallas kernels in a traced program: parameters, memory and cores."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final, Protocol

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
    """A digest of a traced program: of its text, and of the constants in all of its parts."""
    found = hashlib.sha256(_ADDRESS.sub("", str(program)).encode())
    for constant in _constants(program):
        array = np.asarray(constant)
        found.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def _constants(program: object) -> Iterator[object]:
    yield from getattr(program, "consts", ())
    for equation in getattr(getattr(program, "jaxpr", program), "eqns", ()):
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                yield from _constants(part)


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
