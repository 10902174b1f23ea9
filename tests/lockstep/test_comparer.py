"""The comparer: what is wrong with an answer, by its clause, its part and both values."""

from collections.abc import Callable, Collection
from enum import IntEnum
from itertools import chain, combinations
from typing import Any, Final

import pytest
from attrs import evolve, fields

from conformance.lockstep.comparer import (
    LOGPROB_TOLERANCE,
    Difference,
    erased_difference,
    field_difference,
    logprob_difference,
    names,
    refusal_difference,
    result_difference,
    served_difference,
    statistic_difference,
    wrong_entry,
)
from conformance.protocol import RESULTS, Rounds
from spec.fields import FIELDS, Field
from spec.machines import actions as act
from spec.stats import NAMED
from spec.table import BatchPlan
from spec.vocabulary import FinishReason, Reason, ResetMode

REASONS: Final = (Reason.OUT_OF_PAGES, Reason.TOO_LONG, Reason.BATCH_WIDTH)
SETS: Final = tuple(
    map(frozenset, chain.from_iterable(combinations(REASONS, size) for size in range(4)))
)
"""Every set of three reasons, the empty one first."""
PLAN: Final = BatchPlan(
    order=(0, 1), slot_ids=(0, 0), destinations=(4, 5), kv_lens=(2,), page_indices=((2,),),
    cu_q_lens=(0, 2), num_seqs=1,
)  # fmt: skip
STEPS: Final[dict[str, tuple[object, ...]]] = {
    "RESET": (act.Reset(), act.Reset(ResetMode.PHYSICAL)),
    "WIN": (act.Release(0, 0),),
    "RB": (act.Truncate(0, 1),),
    "": (None, "a step in words", act.Free(0), act.Reserve(), act.Commit(0, 1), act.Pack()),
}
"""Steps by the clause that any difference after them violates; empty: that of the field."""
CLAUSES_OF_RESULTS: Final = {
    act.Reserve(): "DET",
    act.Clone(0): "DET",
    act.Allocate(((0, 0),)): "DET",
    act.Pack(): "Q",
    act.TakeOutputs(): "OUT",
    act.Generate(): "PROG",
}
"""Each action with a result, and the clause that another one violates: docs/actions.md."""


def listed(reasons: Collection[Reason]) -> str:
    """The names of some reasons in the order of the alphabet."""
    return ", ".join(sorted(one.name for one in reasons))


@pytest.mark.parametrize("expected", SETS, ids=listed)
@pytest.mark.parametrize("given", [None, *SETS], ids=lambda one: "done" if one is None else one)
def test_a_refusal_is_judged_by_its_reasons(
    given: frozenset[Reason] | None, expected: frozenset[Reason]
) -> None:
    """An action is refused exactly if the specification refuses it, for some of its reasons."""
    found = refusal_difference(given, expected, refuses="exact")
    lenient = refusal_difference(given, expected, refuses="may_refuse_more")

    said = "" if given is None else listed(given) or "no reason given"
    if given is None and expected:
        right = Difference("ATOMIC", "the action", "done", f"refused: {listed(expected)}")
    elif given is not None and not expected:
        right = Difference("ATOMIC", "the action", f"refused: {said}", "done")
    elif given is not None and given - expected:
        allowed = listed(expected) if len(expected) == 1 else f"one of {listed(expected)}"
        right = Difference("ATOMIC", "the reason", said, allowed)
    else:
        assert (None, None) == (found, lenient)
        return
    assert right == found
    assert (right if expected else None) == lenient


@pytest.mark.parametrize("reasons", SETS, ids=listed)
def test_reasons_are_listed_by_name(reasons: frozenset[Reason]) -> None:
    """No reason is said in words, and several stand in the order of the alphabet."""
    assert (listed(reasons) or "no reason given") == names(reasons)


class Number(IntEnum):
    """Integers of another class, as an engine may have them."""

    ZERO = 0
    ONE = 1
    TWO = 2
    FOUR = 4
    FIVE = 5


def each(value: Any, change: Callable[[Any], Any]) -> list[Any]:
    """The value with one of its integers changed, in every place, however deep."""
    if isinstance(value, int):
        return [change(value)]
    if isinstance(value, list | tuple):
        kind = type(value)
        return [
            kind([*value[:at], other, *value[at + 1 :]])
            for at, part in enumerate(value)
            for other in each(part, change)
        ]
    own = {Rounds: ["done"], BatchPlan: [one.name for one in fields(BatchPlan)]}
    return [
        evolve(value, **{name: other})
        for name in own.get(type(value), ())
        for other in each(getattr(value, name), change)
    ]


RIGHT: Final[tuple[tuple[Any, Any], ...]] = (
    (act.Reserve(), 1),
    (act.Clone(0), 0),
    (act.Allocate(((0, 0), (0, 1))), PLAN),
    (act.Pack(), ((1, 0, 5), (2, 1, 1))),
    (act.TakeOutputs(), ((1, 0, (4, 0), FinishReason.STOP), (2, 1, (), FinishReason.LIMIT))),
    (act.Generate(), Rounds(2, Reason.OUT_OF_PAGES)),
    (act.Generate(), Rounds(0, None)),
)
"""An action, and a right result of it."""


@pytest.mark.parametrize(("step", "right"), RIGHT)
def test_one_wrong_number_in_a_result_is_told(step: Any, right: Any) -> None:
    """A number more, less, of another kind or as text is told with the clause of the action."""
    changes: tuple[Callable[[int], object], ...] = (
        lambda one: one + 1, lambda one: one - 1, float, str,
    )  # fmt: skip
    clause = {type(one): clause for one, clause in CLAUSES_OF_RESULTS.items()}[type(step)]
    wrong = [other for change in changes for other in each(right, change)]
    wrong += [other for other in each(right, bool) if str(other) != str(right)]

    assert len(wrong) >= 4
    for other in wrong:
        found = result_difference(step, other, [right])

        assert Difference(clause, "the result", other, str(right)) == found
        assert found is not None
        assert f"the result is {other}, should be {right}" == str(found)


@pytest.mark.parametrize(("step", "right"), RIGHT)
def test_a_right_result_is_one_of_those_that_are_legal(step: Any, right: Any) -> None:
    """An integer of any class is right; no result, and any where none is specified, are not
    judged.
    """
    others = each(right, lambda one: one + 1)
    for alike in (right, *each(right, Number)):
        for legal in ([right], [right, *others], [*others, right], {right}):
            assert None is result_difference(step, alike, legal)
    for other in (right, *others, None):
        assert None is result_difference(step, other, ())
    for legal in ([right], others):
        assert None is result_difference(step, None, legal)

    found = result_difference(step, right, others)
    assert found is not None
    assert " or ".join(map(str, others)) == found.expected


def test_every_result_that_an_action_returns_has_a_clause() -> None:
    """The actions with a result in the protocol are those that the tests of results name."""
    assert set(RESULTS) == {type(step) for step in CLAUSES_OF_RESULTS}
    assert {type(step) for step, _ in RIGHT} == set(RESULTS)


VALUES: Final = (0, 3, -1, (1,), (1, 2), (), None)
"""Entries of fields; the first three have an order."""


def pairs() -> list[tuple[Any, Any]]:
    """Every two of VALUES."""
    return [(seen, expected) for seen in VALUES for expected in VALUES]


@pytest.mark.parametrize("field", FIELDS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    ("step", "own"), [(step, clause) for clause, steps in STEPS.items() for step in steps]
)
def test_an_entry_of_a_field_is_told_by_its_clause(step: object, own: str, field: Field) -> None:
    """It is that of the field, or that of the step if it has one; the index stands beside it."""
    at = 2
    what = field.name if field.index == "whole" else f"{field.name}[2]"
    for seen, expected in pairs():
        right = Difference(own or field.clause, what, seen, expected)
        found = field_difference(step, field.name, at, seen=seen, expected=expected)

        assert (None if seen == expected else right) == found
        assert right == wrong_entry(step, field.name, at, seen=seen, expected=expected)
        assert f"{what} is {seen}, should be {expected}" == str(right)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(
    ("step", "own"), [(step, clause) for clause, steps in STEPS.items() for step in steps]
)
def test_a_statistic_is_told_by_its_name(step: object, own: str, name: str) -> None:
    """Any other value violates STAT, or the clause of the step."""
    for seen, expected in pairs():
        found = statistic_difference(step, name, seen=seen, expected=expected)

        right = Difference(own or "STAT", f"the statistic {name}", seen, expected)
        assert (None if seen == expected else right) == found


@pytest.mark.parametrize(
    ("seen", "expected", "is_right"),
    [
        (-0.5, -0.5, True),
        (-LOGPROB_TOLERANCE, 0.0, True),
        (0.0, -LOGPROB_TOLERANCE, True),
        (-1.5 * LOGPROB_TOLERANCE, 0.0, False),
        (0.0, -1.5 * LOGPROB_TOLERANCE, False),
        (float("nan"), -0.5, False),
        (-0.5, None, False),
        (None, -0.5, False),
        (None, None, True),
    ],
)
def test_a_log_probability_is_right_up_to_the_tolerance(
    seen: float | None, expected: float | None, *, is_right: bool
) -> None:
    """It violates ALONE beyond the tolerance, and if there is one too many or too few."""
    found = logprob_difference((3, 1), 2, seen=seen, expected=expected)

    what = "the log-probability of token 2 of output (3, 1)"
    if is_right:
        assert None is found
    else:
        assert Difference("ALONE", what, seen, expected) == found


SERVED: Final = (
    (1, 0, (4, 5), FinishReason.LIMIT),
    (1, 1, (4,), FinishReason.STOP),
    (2, 0, (0,), FinishReason.LIMIT),
)
"""What is served, by request and choice."""


def test_what_is_served_may_come_in_any_order() -> None:
    """Each of the outputs stands once, as an integer of any class, and in no particular order."""
    for given in (SERVED, SERVED[::-1], [SERVED[1], SERVED[2], SERVED[0]]):
        assert None is served_difference(given, SERVED)
    for given in each(list(SERVED), Number):
        assert None is served_difference(given, SERVED)
    assert None is served_difference([], ())


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        list(SERVED[1:]),
        [*SERVED, SERVED[0]],
        *each(list(SERVED), lambda one: one + 1),
        *each(list(SERVED), lambda one: one - 1),
        *each(list(SERVED), float),
        [*SERVED[:2], (2, 0, (False,), FinishReason.LIMIT)],
        [*SERVED[:2], (2, False, (0,), FinishReason.LIMIT)],
    ],
)
def test_a_wrong_output_of_what_is_served_is_told(wrong: list[Any]) -> None:
    """It violates OUT, and both lists are shown as they were given."""
    found = served_difference(tuple(wrong[::-1]), SERVED)

    assert Difference("OUT", "what is served to the end", wrong[::-1], list(SERVED)) == found


def test_a_cell_that_is_not_erased_is_told() -> None:
    """It violates RESET, and the message ends with what a physical reset does."""
    for seen, erased in pairs():
        found = erased_difference(5, seen=seen, erased=erased)

        said = f"cells[5] is {seen}, should be {erased}; a physical reset erases every cell"
        assert (None if seen == erased else said) == (found and str(found))
        assert found is None or ("RESET", "cells[5]", seen, erased) == found[:4]
