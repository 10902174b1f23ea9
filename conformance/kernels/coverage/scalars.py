"""Arithmetic of scalar integers and truth values, as a kernel computes it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

MODELLED: Final = frozenset({"int32", "bool"})
FIRST_PAST: Final = 1 << 31
"""The first integer that int32 does not hold. Few results are wrapped, so they are asked first."""
Value = Any
"""An integer, a truth value, a `memory.Memory`, or None where it is unknown."""


class Unknown(Exception):
    """The control flow depends on more than integers in scalar memory, or is not modelled."""


def is_modelled(kind: Any) -> bool:
    """Whether numbers of a type of a program are int32 or truth values: others are unknown."""
    return str(getattr(kind, "dtype", "")) in MODELLED


def is_scalar(kind: Any) -> bool:
    """Whether a type of a program is that of one int32 or truth value."""
    return getattr(kind, "shape", None) == () and is_modelled(kind)


def plain(literal: Any) -> Value:
    """A literal of a program as a number of Python; None if it is not modelled."""
    return np.asarray(literal.val).item() if is_scalar(literal.aval) else None


def _wrapped(number: int) -> int:
    """As int32 holds it."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _divided(number: int, by: int) -> int:
    """Rounded towards zero."""
    if by == 0:
        raise Unknown("a division by zero")
    return abs(number) // abs(by) * (1 if (number < 0) == (by < 0) else -1)


ARITHMETIC: Final[Mapping[str, Callable[..., int]]] = {
    "add": lambda a, b: c if -FIRST_PAST <= (c := a + b) < FIRST_PAST else _wrapped(c),
    "sub": lambda a, b: c if -FIRST_PAST <= (c := a - b) < FIRST_PAST else _wrapped(c),
    "mul": lambda a, b: c if -FIRST_PAST <= (c := a * b) < FIRST_PAST else _wrapped(c),
    "div": _divided,
    "rem": lambda a, b: a - _divided(a, b) * b,
    "neg": lambda a: _wrapped(-a),
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: not a if isinstance(a, bool) else ~a,
    "shift_left": lambda a, b: _wrapped(a << b),
    "shift_right_arithmetic": lambda a, b: a >> b,
    "shift_right_logical": lambda a, b: _wrapped((a % (1 << 32)) >> b),
    "min": min,
    "max": max,
    "clamp": lambda low, a, high: min(max(a, low), high),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
"""By the name of the primitive, on int32 and truth values."""
COMPARING: Final = frozenset({"min", "max", "lt", "le", "gt", "ge", "eq", "ne"})
SAME: Final = frozenset({"multiple_of", "squeeze", "reshape", "broadcast_in_dim", "copy"})
"""Primitives that leave a scalar as it is."""
