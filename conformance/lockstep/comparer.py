"""The one comparer: it compares an engine's answers with those that the specification allows.

Only this module judges a refusal, a result or the value of a field: for engines in lockstep, for
recordings and for vectors. Source: docs/sources.md, "Refusals".
"""

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from attrs import fields, has

from conformance.lockstep.serving import by_name
from conformance.protocol import Refuses
from conformance.rungs.registry import ACTIONS, clause_of
from spec.fields import BY_NAME
from spec.model import LOGPROB_STEP
from spec.vocabulary import Reason
from spec.vocabulary.events import Event, PageKey

LOGPROB_TOLERANCE: Final = LOGPROB_STEP / 2
"""Any two log-probabilities of the exact model differ by more, and a float32 holds each exactly."""
_INTEGERS: Final = frozenset({int})


class Difference(NamedTuple):
    """A wrong answer. clause: the id of the invariant that it violates. what: the wrong part.

    note: what else explains it, or what to do about it; may be empty.
    """

    clause: str
    what: str
    seen: object
    expected: object
    note: str = ""

    def __str__(self) -> str:
        told = f"{self.what} is {self.seen}, should be {self.expected}"
        return f"{told}; {self.note}" if self.note else told


def refusal_difference(
    given: frozenset[Reason] | None, expected: frozenset[Reason], *, refuses: Refuses
) -> Difference | None:
    """The error in an engine's refusal or acceptance of an action; None if there is no error.

    given: the engine's reasons, which may be empty; None if it took the action. expected: every
    reason of the specification; empty if the action is legal.
    """
    if given is None:
        if not expected:
            return None
        return Difference("ATOMIC", "the action", "done", f"refused: {names(expected)}")
    if not expected:
        if refuses == "may_refuse_more":
            return None
        return Difference("ATOMIC", "the action", f"refused: {names(given)}", "done")
    if not given <= expected:
        one_of = "one of " * (len(expected) > 1) + names(expected)
        return Difference("ATOMIC", "the reason", names(given), one_of)
    return None


def result_difference(step: object, result: object, legal: Collection[object]) -> Difference | None:
    """The error in the result of an action; None if there is no error.

    A result of None was not reported, and an empty `legal` means that none was specified: neither
    is judged.
    """
    if result is None or not legal or any(_same(result, one) for one in legal):
        return None
    expected = " or ".join(map(str, legal))
    return Difference(ACTIONS[type(step)].result_clause, "the result", result, expected)


def _same(seen: object, expected: object) -> bool:
    """Whether two values are equal, with numbers of one kind: neither False nor 0.0 is 0."""
    return seen == expected and _same_kinds(seen, expected)


def _same_kinds(seen: Any, expected: Any) -> bool:
    """Whether all numbers in two equal values are of one kind."""
    if isinstance(expected, list | tuple):
        if _INTEGERS.issuperset(map(type, seen)):  # most results are long lists of integers
            return _INTEGERS.issuperset(map(type, expected))
        return all(map(_same_kinds, seen, expected))
    if has(type(expected)):
        names = (field.name for field in fields(type(expected)))
        return all(_same_kinds(getattr(seen, name), getattr(expected, name)) for name in names)
    return all(isinstance(seen, kind) is isinstance(expected, kind) for kind in (bool, float))


def statistic_difference(
    step: object, name: str, *, seen: object, expected: object
) -> Difference | None:
    """The error in a statistic after a step, or None."""
    if seen == expected:
        return None
    return Difference(clause_of(step, "STAT"), f"the statistic {name}", seen, expected)


def event_difference(event: Event, missing: str) -> Difference:
    """The error in an event of the index that cannot follow the earlier ones."""
    return Difference("EVT", "an event of the index", event, f"told only if {missing}")


def untold_difference(key: PageKey, *, expected: bool) -> Difference:
    """The error in the events so far, of a key. expected: whether the index has it."""
    what = f"that the index has the key {key}, by its events,"
    return Difference("EVT", what, not expected, expected)


def logprob_difference(
    key: tuple[int, int], position: int, *, seen: float | None, expected: float | None
) -> Difference | None:
    """The error in the log-probability of a generated token of an output, or None.

    key: the (request, choice) of the output. position: that of the token after the prompt. None:
    there is no such entry. LOGPROB_TOLERANCE is the largest error that is none.
    """
    if seen is not None and expected is not None:
        if abs(seen - expected) <= LOGPROB_TOLERANCE:
            return None
    elif seen is expected:
        return None
    what = f"the log-probability of token {position} of output {key}"
    return Difference("ALONE", what, seen, expected)


def served_difference(seen: Collection[Any], expected: Collection[Any]) -> Difference | None:
    """The error in the outputs of requests that were served to the end, in any order, or None."""
    if _same(sorted(seen, key=by_name), list(expected)):
        return None
    return Difference("OUT", "what is served to the end", list(seen), list(expected))


def erased_difference(cell: int, *, seen: object, erased: object) -> Difference | None:
    """The error in a cell after a physical reset, or None."""
    if seen == erased:
        return None
    return Difference("RESET", f"cells[{cell}]", seen, erased, "a physical reset erases every cell")


def field_difference(
    step: object, name: str, index: int, *, seen: object, expected: object
) -> Difference | None:
    """The error in one entry of a field after a step, or None. index: its slot, page or cell."""
    if seen == expected:
        return None
    return wrong_entry(step, name, index, seen=seen, expected=expected)


def wrong_entry(
    step: object, name: str, index: int, *, seen: object, expected: object
) -> Difference:
    """The error in an entry of a field that is known to be wrong."""
    field = BY_NAME[name]
    what = name if field.index == "whole" else f"{name}[{index}]"
    return Difference(clause_of(step, field.clause), what, seen, expected)


def names(reasons: Collection[Reason]) -> str:
    """The names of the reasons, sorted and separated by commas, or `no reason given`."""
    return ", ".join(sorted(reason.name for reason in reasons)) or "no reason given"
