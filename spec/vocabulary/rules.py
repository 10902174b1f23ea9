"""Rules for input values, checked once, before any state is touched.

A rule is a validator of attrs and can also be called by name, so that a field of an action and an
argument of an engine give the same message. A rule checks what a value is; whether a state accepts
it is decided by the refusals of that state. So any integer is a slot here.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

from attrs import frozen

from spec.vocabulary.errors import InvalidInput

INT32_MAX: Final = 2**31 - 1
_UINT32_MAX: Final = 2**32 - 1


@frozen(eq=False)
class Rule:
    """A kind of value. holds: whether a value is one. allowed, remedy: texts of the error."""

    holds: Callable[[Any], bool]
    allowed: str
    remedy: str

    def require(self, name: str, value: object) -> None:
        """Raise InvalidInput, with this name, unless the value is one."""
        if not self.holds(value):
            raise InvalidInput(name, seen=value, allowed=self.allowed, remedy=self.remedy)

    def __call__(self, instance: object, attribute: Any, value: Any) -> None:
        """Validate a field of an attrs class; the name is that of the class and the field."""
        if not self.holds(value):
            self.require(f"{type(instance).__name__}.{attribute.name}", value)


def between(low: int, high: int) -> Rule:
    """The rule for an integer from `low` to `high`."""
    return Rule(
        lambda value: type(value) is int and low <= value <= high,
        f"an integer from {low} to {high}",
        "Pass an int in this range; int() converts a numpy integer.",
    )


def a(kind: type) -> Rule:
    """The rule for an instance of a class."""
    return Rule(
        lambda value: isinstance(value, kind), f"a {kind.__name__}", f"Pass a {kind.__name__}."
    )


def tuple_of(kind: type) -> Rule:
    """The rule for a tuple of instances of a class; it may be empty."""
    return Rule(
        lambda value: type(value) is tuple and all(isinstance(item, kind) for item in value),
        f"a tuple of {kind.__name__}",
        f"Pass a tuple, even for one {kind.__name__}: (it,).",
    )


def _is_slot(value: Any) -> bool:
    return type(value) is int


def _is_pair(value: Any) -> bool:
    return (
        type(value) is tuple and len(value) == 2 and type(value[0]) is int and type(value[1]) is int
    )


def _are_tokens(value: Any) -> bool:
    if type(value) is not tuple:
        return False
    whole = set(map(type, value)) <= {int}
    return whole and (not value or (min(value) >= 0 and max(value) <= INT32_MAX))


def _is_batch(value: Any) -> bool:
    if type(value) is not tuple:
        return False
    for entry in value:  # spelled out: a call for each entry would cost more than the rest
        if entry is None:
            continue
        if type(entry) is not tuple or len(entry) != 2:
            return False
        slot, position = entry
        if type(slot) is not int or type(position) is not int:
            return False
    return True


def _is_temperature(value: Any) -> bool:
    number = isinstance(value, int | float) and type(value) is not bool
    return number and 0 <= value <= sys.float_info.max


SIZE: Final = between(1, INT32_MAX)
"""A number of pages, tokens or choices."""

SIZE_OR_NONE: Final = Rule(
    lambda value: value is None or SIZE.holds(value), f"{SIZE.allowed}, or None", SIZE.remedy
)

INT32: Final = between(0, INT32_MAX)
"""A request id, a choice, a seed, a token."""

DRAW: Final = between(0, _UINT32_MAX)

SLOT: Final = Rule(
    _is_slot, "an integer", "Pass an int, not a boolean; int() converts a numpy integer."
)
SLOT_OR_ANY: Final = Rule(
    lambda value: value is None or type(value) is int,
    "an integer, or None for the lowest free slot",
    SLOT.remedy,
)
NAME: Final = Rule(
    lambda value: type(value) is int or _is_pair(value),
    "an integer, or a tuple (request, choice) of two",
    SLOT.remedy,
)
NAME_OR_ANY: Final = Rule(
    lambda value: value is None or type(value) is int or _is_pair(value),
    f"{NAME.allowed}, or None for the lowest free slot",
    SLOT.remedy,
)
BATCH: Final = Rule(
    _is_batch,
    "a tuple of (slot, position) pairs of integers, and of None",
    "Pass tuples; None is padding.",
)
CHUNKS: Final = Rule(
    lambda value: type(value) is tuple and all(map(_is_pair, value)),
    "a tuple of (slot, count) pairs of integers",
    "Pass a tuple, even for one chunk: ((slot, count),).",
)
TOKENS: Final = Rule(_are_tokens, "a tuple of integers from 0 to 2**31 - 1", "Pass token ids.")
PROMPT: Final = Rule(
    lambda value: _are_tokens(value) and bool(value),
    "a non-empty tuple of integers from 0 to 2**31 - 1",
    "Pass token ids.",
)
STOPS: Final = Rule(
    lambda value: type(value) is tuple and all(map(PROMPT.holds, value)),
    "a tuple of non-empty tuples of integers from 0 to 2**31 - 1",
    "Pass (), or one tuple of token ids per stop sequence.",
)
TEMPERATURE: Final = Rule(
    _is_temperature, "a finite number, 0 or more", "Use 0 for greedy decoding."
)
