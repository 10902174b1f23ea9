"""Steps that differ from another one in a single value: most guards ask about one of them.

What a value becomes depends on its type alone, so that this holds for the actions of every rung.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, TypeVar

from attrs import evolve, fields, has

from conformance.rungs.shared_generators import Digits
from spec.state import State
from spec.vocabulary import InvalidInput

T = TypeVar("T")

LONGEST: Final = 1024
"""The most entries that a change gives to a tuple, and the most choices to a request."""


CONTEXT: Final = ("context",)
"""The field that means nothing without an index."""


def changed(state: State, step: T, digits: Digits) -> T | None:
    """The step with one value changed; None if it has none, or if the change has no meaning."""
    paths = [path for path in _paths(step) if path != CONTEXT or state.contexts]
    if not paths:
        return None
    try:
        other: T = _with_change(state, step, digits.one_of(paths), digits)
    except InvalidInput:
        return None
    return other


def _paths(value: Any) -> Iterator[tuple[str, ...]]:
    """The names that lead to each value that is no record itself."""
    for one in fields(type(value)):
        inner = getattr(value, one.name)
        for path in _paths(inner) if has(type(inner)) else ((),):
            yield (one.name, *path)


def _with_change(state: State, value: Any, path: tuple[str, ...], digits: Digits) -> Any:
    if not path:
        return _another(state, value, digits)
    name, *rest = path
    inner = _with_change(state, getattr(value, name), tuple(rest), digits)
    return evolve(value, **{name: inner})


def _another(state: State, value: Any, digits: Digits) -> Any:
    if isinstance(value, tuple):
        return _another_tuple(state, value, digits)
    if isinstance(value, Enum):
        return digits.one_of([*type(value)])
    if has(type(value)):  # a request among several
        return _with_change(state, value, digits.one_of([*_paths(value)]), digits)
    return _number(state, value or 0, digits) if not isinstance(value, float) else 1.0 - value


def _number(state: State, near: int, digits: Digits) -> int:
    """One more or less, a slot or one past the last, a request, or a number of cells."""
    kind, slots = digits.below(3), state.geometry.slots
    if kind == 0:
        return near + digits.one_of((1, -1))
    if kind == 1:
        return digits.below(slots + 1)
    named = {min(LONGEST, state.geometry.max_len)} | {one.id for one in state.waiting}
    named |= {detail.request for detail in state.details if detail}
    named |= {output.request for output in state.outputs}
    named |= {sequence.allocated for sequence in state.sequences if sequence}
    return digits.one_of(sorted(one for one in named if one <= LONGEST))


def _another_tuple(state: State, entries: tuple[Any, ...], digits: Digits) -> tuple[Any, ...]:
    """With an entry less, or twice, or changed, or repeated until some limit is passed."""
    limits = [getattr(state.limits, one.name) for one in fields(type(state.limits))]
    at, kind = digits.below(len(entries)), digits.below(5)
    before, after = entries[:at], entries[at + 1 :]
    entry = entries[at] if entries else digits.one_of((0, (0,)))
    if kind == 0:
        return (*before, *after)
    if kind == 1:
        return (*before, entry, *entries[at:])
    if kind == 2:
        return (*entries, *[entry] * (min(digits.one_of(limits), LONGEST) + 1 - len(entries)))
    if isinstance(entry, tuple):
        which = digits.below(len(entry))
        entry = (*entry[:which], _number(state, entry[which], digits), *entry[which + 1 :])
    else:
        entry = _another(state, entry, digits)
    return (*before, entry, *after)
