"""Buffers of a kernel, of which those in scalar memory hold the integers that steer it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import define

from conformance.kernels.coverage.scalars import Value, is_modelled

Numbers = np.ndarray[Any, np.dtype[Any]]
Index = tuple[int | slice, ...]


@define(eq=False)
class Memory:
    """A buffer. numbers: None if it holds none that steer; elements that are unknown are None."""

    numbers: Numbers | None = None


def steers(kind: Any) -> bool:
    """Whether a buffer of this type holds integers that steer: those in scalar memory."""
    return str(getattr(kind, "memory_space", "")) == "smem" and is_modelled(kind)


def fresh(kind: Any) -> Memory:
    """A buffer to which nothing was written."""
    return Memory(np.full(kind.shape, None, object)) if steers(kind) else Memory()


def filled(kind: Any, given: Numbers) -> Memory:
    """A buffer with these numbers."""
    found = fresh(kind)
    if found.numbers is None:
        return Memory(given)
    found.numbers[...] = given.reshape(kind.shape)
    return found


class Part:
    """Part of a buffer, as an equation names it: a reference, and where in it.

    of: the slot of a variable or a literal.
    """

    def __init__(self, ref: Any, transforms: Any, of: Callable[[Any], int]) -> None:
        self._ref = of(ref)
        self._known = len(transforms) <= 1 and all(hasattr(one, "indices") for one in transforms)
        self._dims = [
            _Dim(one, of) for transform in transforms if self._known for one in transform.indices
        ]

    def numbers(self, values: list[Value]) -> Numbers | None:
        """Those of the whole buffer; None if none of them steers."""
        held = values[self._ref]
        return held.numbers if isinstance(held, Memory) else None

    def index(self, values: list[Value], numbers: Numbers) -> Index | None:
        """Where the part is; None if that is unknown, or outside."""
        if not self._known:
            return None
        found = [
            dim.range(values, extent)
            for dim, extent in zip(self._dims, numbers.shape, strict=bool(self._dims))
        ]
        return None if None in found else tuple(one for one in found if one is not None)


class _Dim:
    """An index or a range of one axis."""

    def __init__(self, dim: Any, of: Callable[[Any], int]) -> None:
        self._one = not hasattr(dim, "start")
        start = dim if self._one else dim.start
        self._size = 1 if self._one else dim.size
        self._stride = 1 if self._one else dim.stride
        self._slot = of(start) if hasattr(start, "aval") else None
        self._start = None if hasattr(start, "aval") else start

    def range(self, values: list[Value], extent: int) -> int | slice | None:
        start = self._start if self._slot is None else values[self._slot]
        if not isinstance(start, int | np.integer) or not isinstance(self._size, int):
            return None
        last = int(start) + (self._size - 1) * self._stride
        if not 0 <= start <= last < extent:
            return None
        return int(start) if self._one else slice(int(start), last + 1, self._stride)
