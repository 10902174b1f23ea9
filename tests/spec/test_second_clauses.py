"""The clauses beside a second reading of them: no code in common, the same verdicts.

Other tests hold a clause to examples that were made by hand, which are far apart. Here views of
random histories, most of them with a small change, and pairs of them, are judged by both. The two
must name the same clauses, for a view and for a step. They are compared in any order, and however
many are violated, but for what no document gives a meaning to:

- a negative number of cells is no length, which LEN says: beside one of `allocated` ROW is not
  compared, beside one of `committed` SHARE and SETTLED, and beside one of `written` before a step
  WX.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from attrs import evolve, frozen
from deep import deep_after
from second_clauses import STATE, STEP, UNASKED, UNASKED_ACROSS, violated, violated_across
from spec_draws import one_of
from test_second_reading import CACHING, begin, drawn
from view_changes import HIDDEN, changed, hiding

from spec import clauses, view
from spec.machines.actions import Append
from spec.view import View

STEPS = 40
"""How often each clause is seen violated alone, and how often another one is without it."""
TOGETHER = {"CONS": {"CONS", "RC"}}
"""A page that is neither free nor live has a wrong count; each other clause can be alone."""


@frozen
class Case:
    """A view, or a step, with what both readings say of it. number: of its history."""

    number: int
    before: View | None
    after: View
    found: frozenset[str]
    wanted: frozenset[str]


def history(number: int) -> Iterator[View]:
    """The views of a random history.

    Without Append, whose tokens never wait: an engine that offers it shows no queue. Every third
    engine hides a field in all its views: the tokens more often, beside which READ is seldom alone.
    """
    rng = Random(f"second clauses {number}")
    state, _, odds = begin(rng)
    hidden = (rng.choice((*HIDDEN, "tokens", "tokens")),) if one_of(rng, 0, 0, 1) else ()
    yield hiding(view.of(CACHING, state), *hidden)
    for request in range(10, 10 * STEPS, 10):
        action = drawn(state, rng, request, odds)
        if not isinstance(action, Append) and not CACHING.refusals(state, action):
            state = CACHING.step(state, action)
            yield hiding(view.of(CACHING, state), *hidden)


def negative(numbers: tuple[int, ...] | None) -> bool:
    """Whether one of these numbers of cells is no length."""
    return min(numbers or (0,)) < 0


def of_a_view(number: int, seen: View) -> Case:
    """What both readings say of a view."""
    rows = {"ROW"} if negative(seen.allocated) else set[str]()
    left_out = rows | ({"SHARE", "SETTLED"} if negative(seen.committed) else set())
    found = {name for name, _ in clauses.violations(seen)} - left_out
    return Case(number, None, seen, frozenset(found), frozenset(violated(seen) - left_out))


def of_a_step(number: int, before: View, after: View) -> Iterator[Case]:
    """What both readings say of a step."""
    left_out = {"WX"} if negative(before.written) else set[str]()
    found = {name for name, _ in clauses.step_violations(before, after)} - left_out
    wanted = violated_across(before, after) - left_out
    yield Case(number, before, after, frozenset(found), frozenset(wanted))


def cases(number: int) -> Iterator[Case]:
    """The views and steps of a history, and such as are almost right.

    A changed view is judged alone, and as the one before a step, after it, or both but for the
    change. Views some steps apart are judged as a step, though none leads from one to the other.
    """
    rng, views = Random(f"almost right {number}"), list(history(number))
    for at, seen in enumerate(views):
        last, following = views[max(0, at - 1)], views[min(at + 1, len(views) - 1)]
        yield of_a_view(number, seen)
        yield from of_a_step(number, last, seen)
        yield from of_a_step(number, views[max(0, at - rng.randrange(2, 6))], seen)
        for changes in (1, 1, 2):
            almost = seen
            for _ in range(changes):
                almost = changed(almost, rng)
            yield of_a_view(number, almost)
            yield from of_a_step(number, last, almost)
            yield from of_a_step(number, almost, following)
            yield from of_a_step(number, seen, almost)
            yield from of_a_step(number, almost, seen)


@pytest.mark.parametrize(("histories", "least"), deep_after(1, [(64, 2), (320, 20)]))
def test_two_readings_of_the_clauses(histories: int, least: int) -> None:
    """Views and steps that are right or almost right violate the same clauses in both readings."""
    alone = {False: Counter[str](), True: Counter[str]()}
    without = {False: Counter[str](), True: Counter[str]()}
    judged = {False: frozenset(STATE), True: frozenset(STEP)}
    for number in range(histories):
        for case in cases(number):
            step = case.before is not None
            alone[step].update(
                name for name in case.found if case.found == TOGETHER.get(name, {name})
            )
            without[step].update(judged[step] - case.found if case.found else ())

            assert (case.wanted, case) == (case.found, case)

    for step, names in judged.items():
        assert [] == [name for name in sorted(names) if alone[step][name] < least]
        assert [] == [name for name in sorted(names) if without[step][name] < least]


def unasked(case: Case) -> set[str]:
    """The parts of clauses that a case violates though the specification does not say so."""
    parts: dict[str, str] = {}
    if case.before is None:
        parts = {one.__name__: name for one, name in UNASKED.items() if one(case.after)}
    else:
        across = UNASKED_ACROSS.items()
        parts = {one.__name__: name for one, name in across if one(case.before, case.after)}
    return {part for part, name in parts.items() if name not in case.found}


@pytest.mark.parametrize(("histories", "least"), deep_after(1, [(40, 2), (240, 20)]))
def test_parts_of_clauses_that_no_predicate_asks(histories: int, least: int) -> None:
    """Parts of some clauses hold in every history, but may be violated without being named."""
    missed = Counter[str]()
    for number in range(histories):
        views = list(history(number))
        right = [Case(number, None, seen, frozenset(), frozenset()) for seen in views]
        right += [evolve(case, before=last) for case, last in zip(right[1:], views, strict=False)]
        for case in cases(number):
            missed.update(unasked(case))

        assert [] == [case for case in right if unasked(case)]

    parts = {part.__name__ for part in (*UNASKED, *UNASKED_ACROSS)}
    assert parts == {part for part, times in missed.items() if times >= least}
