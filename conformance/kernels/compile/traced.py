"""What a traced program says of the Pallas kernels in it."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Protocol

import numpy as np


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


def references(program: object) -> Iterator[Reference]:
    """What every kernel of a traced program reads and writes, with the memory it lies in."""
    for kernel in kernels(program):
        for variable in kernel["jaxpr"].invars:
            if hasattr(variable.aval, "memory_space"):
                yield variable.aval


def cores(program: object, *, most: int) -> int:
    """On how many cores of a device it works: of its kernels that which is split the most.

    A kernel is split along the axes of its grid that are said to be parallel, and along no others.
    most: cores of the device. No kernel at all works on none.
    """
    return max((min(most, _parallel(kernel)) for kernel in kernels(program)), default=0)


def _parallel(kernel: Mapping[str, Any]) -> int:
    kinds = getattr(kernel["compiler_params"], "dimension_semantics", None) or ()
    sizes = zip(kernel["grid_mapping"].grid, kinds, strict=False)
    return prod(size for size, kind in sizes if getattr(kind, "value", kind) == "parallel")
