"""The clauses on packed states find what they claim, and raise no false alarm.

Each clause is checked on a state or a move that violates it, and no other clause may be named
there.
"""

from itertools import product

import numpy as np
import pytest
from deep import deep_after
from explore_tools import Sizes, Slots, compact, every_state, plan, renamed, sizes

from conformance.exploration.packed_clauses import (
    MOVE_CHECKS,
    STATE_CHECKS,
    mentions,
    move_violations,
    state_violations,
)
from conformance.exploration.packed_states import (
    NO_PAGE,
    UNUSED,
    Allocator,
    Expansion,
    Move,
    States,
)
from spec.vocabulary import Reason

INSTANCE = Allocator(sizes((3, 2, 2, 2)))
FORBIDDEN = Allocator(sizes((3, 2, 2, 2)), illegal=True)
MORE_SLOTS_THAN_PAGES: Sizes = (2, 3, 2, 2)


TAMPERED: tuple[tuple[str, Slots, tuple[int, ...] | None, list[str]], ...] = (
    ("a page leaks", (None, None), (1, 0, 0), ["CONS", "RC", "FREED"]),
    ("a count is missing", ((1, (0,)), None), (0, 0, 0), ["CONS", "RC", "UAF", "FREED"]),
    ("a count is too high", ((2, (0,)), None), (2, 0, 0), ["RC", "FREED"]),
    ("a page twice in a row", ((4, (0, 0)), None), None, ["ROW"]),
    ("a page too many", ((2, (0, 1)), None), None, ["ROW"]),
    ("a page too few", ((3, (0,)), None), None, ["ROW"]),
    ("a hole in a row", ((2, (NO_PAGE, 0)), None), None, ["ROW"]),
    ("a row without a slot", ((UNUSED, (0,)), None), None, ["ROW", "FREED"]),
    ("longer than a row", ((5, (0, 1)), None), None, ["LEN"]),
    ("a partial page is shared", ((1, (0,)), (1, (0,))), None, ["SHARE"]),
)
NAMED = [row for row in TAMPERED if row[1] != (None, None)]
"""Renaming begins at the rows: a page that leaks is caught before it, and lost by it."""


@pytest.mark.parametrize(
    ("slots", "counts", "clauses"), [row[1:] for row in TAMPERED], ids=[row[0] for row in TAMPERED]
)
def test_a_tampered_state_is_caught(
    slots: Slots, counts: tuple[int, ...] | None, clauses: list[str]
) -> None:
    """Exactly the violated clauses are named, each with the first state that violates it."""
    wrong = compact(INSTANCE, slots, counts)
    fine = compact(INSTANCE, ((3, (0, 1)), (2, (0,))))
    states = np.concatenate([INSTANCE.initial(), fine, wrong, wrong])

    assert [(clause, 2) for clause in clauses] == list(state_violations(INSTANCE, states))


def test_a_page_outside_the_pool_is_caught() -> None:
    """A row that names a page past the pool violates ROW, before the page is looked up."""
    outside = compact(INSTANCE, ((1, (7,)), None))

    assert ("ROW", 0) == next(state_violations(INSTANCE, outside))


def test_pages_that_do_not_come_back_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """FREED alone is violated by a correct state if freeing its slots leaves a page in use."""
    right = Allocator.expand

    def leak(instance: Allocator, states: States, move: Move) -> Expansion:
        found = right(instance, states, move)
        if move.kind == "free":
            instance.parts(found.after)[2][:, 0] = 1
        return found

    state = compact(INSTANCE, ((3, (0, 1)), None))
    assert [] == list(state_violations(INSTANCE, state))
    monkeypatch.setattr(Allocator, "expand", leak)
    assert [("FREED", 0)] == list(state_violations(INSTANCE, state))


ONE = ((1, (0,)), None)
LONG = ((3, (0, 1)), None)
TWO = ((1, (0,)), (1, (1,)))
OUT_OF_PAGES, TOO_LONG = {Reason.OUT_OF_PAGES}, {Reason.TOO_LONG}
Outcome = tuple[Slots, tuple[int, ...] | None]
TAMPERED_MOVES: tuple[tuple[str, Slots, Move, set[Reason], Outcome, list[str]], ...] = (
    ("refused in vain", ONE, Move("extend", 0, 2), OUT_OF_PAGES, (ONE, None), ["ATOMIC"]),
    ("a clone in vain", ONE, Move("clone", 0, 1), OUT_OF_PAGES, (ONE, None), ["ATOMIC"]),
    ("free refused", ONE, Move("free", 0), OUT_OF_PAGES, (ONE, None), ["ATOMIC"]),
    ("too long", LONG, Move("extend", 0, 2), set(), (((5, (0, 1)), None), None), ["ATOMIC"]),
    ("half done", LONG, Move("extend", 0, 2), TOO_LONG, (((4, (0, 1)), None), None), ["ATOMIC"]),
    (
        "out of pages, and a page is taken",
        ((4, (0, 1)), (2, (2,))),
        Move("extend", 1, 1),
        set(),
        (((4, (0, 1)), (3, (2, 0))), None),
        ["ATOMIC", "WX"],
    ),
    (
        "tokens from nowhere",
        (None, None),
        Move("reserve", 0),
        set(),
        (((1, (0,)), None), None),
        ["sharing to pages"],
    ),
    (
        "a clone too short",
        LONG,
        Move("clone", 0, 1),
        set(),
        (((3, (0, 1)), (2, (0,))), None),
        ["sharing to pages"],
    ),
    (
        "a neighbour's page",
        TWO,
        Move("free", 0),
        set(),
        ((None, (1, (2,))), None),
        ["FRAME"],
    ),
    (
        "a live page is written",
        (((2, (0,))), (0, ())),
        Move("extend", 1, 1),
        set(),
        (((2, (0,)), (1, (0,))), None),
        ["WX"],
    ),
    (
        "not counted",
        LONG,
        Move("clone", 0, 1),
        set(),
        (((3, (0, 1)), (3, (0, 2))), (1, 1, 1)),
        ["RC"],
    ),
)


@pytest.mark.parametrize(
    ("before", "move", "why", "outcome", "clauses"),
    [row[1:] for row in TAMPERED_MOVES],
    ids=[row[0] for row in TAMPERED_MOVES],
)
def test_a_tampered_move_is_caught(
    before: Slots, move: Move, why: set[Reason], outcome: Outcome, clauses: list[str]
) -> None:
    """Exactly the violated clauses are named, with the first state; the real move violates none."""
    states = np.concatenate([compact(INSTANCE, before)] * 3)
    right = INSTANCE.expand(states, move)
    mask = sum(1 << reason.value for reason in why)
    wrong = Expansion(right.applies, right.reasons.copy(), right.after.copy())
    wrong.after[1:], wrong.reasons[1:] = compact(INSTANCE, *outcome), mask

    assert [] == list(move_violations(INSTANCE, states, move, right))
    assert [(clause, 1) for clause in clauses] == list(
        move_violations(INSTANCE, states, move, wrong)
    )


@pytest.mark.parametrize(
    "numbers", deep_after(1, [((3, 2, 2, 2),), ((3, 2, 3, 2),), ((3, 3, 1, 2),)])
)
def test_a_move_that_changes_one_value_too_many_breaks_its_clause(numbers: Sizes) -> None:
    """In all states, a count under a new cell is WX, a length an edge, a row of another FRAME."""
    states, instance = every_state(plan(numbers)), Allocator(sizes(numbers))
    slots, size = instance.geometry.slots, instance.geometry.page_size
    for move in instance.moves:
        found = instance.expand(states, move)
        done = np.flatnonzero(found.applies & (found.reasons == 0))
        lengths, rows, _ = instance.parts(found.after[done])
        moved = move.other if move.kind == "clone" else move.slot
        start, end = instance.parts(states[done])[0][:, moved], lengths[:, moved]
        changes = list[tuple[str, int, States]]()
        for offset in range(move.other if move.kind == "extend" else 0):
            pages = rows[np.arange(len(done)), moved, (start + offset) // size]
            changed = found.after[done].copy()
            instance.parts(changed)[2][np.arange(len(done)), pages] += 1
            changes.append(("WX", 0, changed))
        for slot in range(slots):
            changed = found.after[done].copy()
            instance.parts(changed)[0][:, slot] += 1
            changes.append(("sharing to pages", 0, changed))
        for slot, entry in product({*range(slots)} - {moved}, range(rows.shape[2])):
            changed = found.after[done].copy()
            instance.parts(changed)[1][:, slot, entry] += 1
            changes.append(("FRAME", 0, changed))

        assert {*end.tolist()} >= {UNUSED} if move.kind == "free" else UNUSED not in end
        for clause, first, changed in changes:
            for at in range(len(done)):
                one = Expansion(found.applies[done][[at]], found.reasons[done][[at]], changed[[at]])
                named = dict(move_violations(instance, states[done][[at]], move, one))
                assert first == named.get(clause), (move, clause)


def test_a_forbidden_move_that_is_done_is_caught() -> None:
    """ATOMIC covers the illegal alphabet: no move of it is done or changes a state."""
    state, move = compact(INSTANCE, ONE), Move("twice", 0)
    right = FORBIDDEN.expand(state, move)
    done = right._replace(reasons=np.zeros_like(right.reasons))
    changed = right._replace(after=compact(INSTANCE, LONG))

    assert [] == list(move_violations(FORBIDDEN, state, move, right))
    assert [("ATOMIC", 0)] == list(move_violations(FORBIDDEN, state, move, done))
    assert [("ATOMIC", 0)] == list(move_violations(FORBIDDEN, state, move, changed))


def test_no_clause_is_without_a_state_that_breaks_it() -> None:
    """The tables above name every check."""
    assert {*STATE_CHECKS} == {clause for row in TAMPERED for clause in row[-1]}
    assert {*MOVE_CHECKS} == {clause for row in TAMPERED_MOVES for clause in row[-1]}


@pytest.mark.parametrize(
    ("slots", "counts", "clauses"), [row[1:] for row in NAMED], ids=[row[0] for row in NAMED]
)
def test_a_canonical_state_breaks_the_same_clauses(
    slots: Slots, counts: tuple[int, ...] | None, clauses: list[str]
) -> None:
    """Renaming slots and pages hides no violation."""
    canonical = INSTANCE.canonical(renamed(INSTANCE, compact(INSTANCE, slots, counts), seed=2))

    assert [(clause, 0) for clause in clauses] == list(state_violations(INSTANCE, canonical))


def test_mentions_are_counted_as_by_hand() -> None:
    """Mentions are the row entries, of any slot, that name a page."""
    states = every_state(plan(MORE_SLOTS_THAN_PAGES))
    instance = Allocator(sizes(MORE_SLOTS_THAN_PAGES))
    _, rows, _ = instance.parts(states)
    by_hand = [[row.ravel().tolist().count(page) for page in range(2)] for row in rows]

    assert by_hand == mentions(instance, states).tolist()
    assert 3 == max(map(max, by_hand))
