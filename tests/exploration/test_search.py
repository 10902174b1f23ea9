"""Searches with the specification itself: pinned counts, and bugs planted in the specification."""

from collections.abc import Callable
from typing import Any

import pytest
from explore_tools import after, searched, silent, sizes, work_alone
from spec_tools import planted

from conformance.exploration.graph import Graph
from conformance.exploration.instances import Instance, instance, legal
from conformance.exploration.search import Expanded, Search, Wrong, expand, told
from spec import pool
from spec.cells import POISON, kill
from spec.machines import actions as act
from spec.machines import sharing
from spec.rung import Faults, Machine, Rule, check, in_order
from spec.state import State
from spec.table import Sequence
from spec.vocabulary import CleanupMode, FinishReason, InvalidInput, Reason, Refusal
from spec.vocabulary.errors import Family

CONTENTS = instance("lifecycle", sizes((2, 2, 2, 1)))
LONGER = instance("lifecycle", sizes((2, 2, 2, 2)))
DECODE = instance("scheduling", sizes((1, 2, 2, 2)))
SMALLEST = instance("scheduling", sizes((1, 1, 2, 2)))


@pytest.fixture(name="no_workers")
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches run in this process."""
    work_alone(monkeypatch)


Effect = Callable[..., State]
"""As `spec.rung.Rule.effect`."""


def expanded(chosen: Instance, state: State) -> Expanded:
    """All moves of one state, as a worker takes them."""
    (found,) = expand((chosen, [state]))
    return found


def wrong(chosen: Instance, state: State) -> tuple[str, str, str | None]:
    """The violation of a state or of a move: the clause, the message and the move's name."""
    found = expanded(chosen, state).wrong
    assert found is not None
    clause, message, move = found
    return clause, message, None if move is None else str(chosen.moves[move])


def test_the_contents_layer_holds_and_has_the_pinned_counts() -> None:
    """Two workers find all states with cells, and number them as a search without workers does."""
    search, found = searched(CONTENTS)
    graph = search.graph

    assert (None, True) == (found, graph.complete)
    assert (376, 4_016, 18_504) == (graph.states, graph.transitions, graph.illegal)
    assert 376 == len(search.states) == len({*search.states})
    assert graph.transitions + graph.illegal == graph.outcomes.total()
    for number in range(0, 376, 25):
        names = [CONTENTS.moves[move].name for move in graph.history(number)]
        assert search.states[number] == after(CONTENTS, *names)


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("chosen", "states", "transitions", "illegal"),
    [(DECODE, 397, 6_094, 14_550), (SMALLEST, 48, 713, 1_207)],
    ids=["two slots", "one slot"],
)
def test_the_decode_layer_holds_and_has_the_pinned_counts(
    chosen: Instance, states: int, transitions: int, illegal: int
) -> None:
    """Requests, rounds and outputs have the pinned counts, with refusals for lack of a page."""
    search, found = searched(chosen)
    graph = search.graph

    assert (None, True) == (found, graph.complete)
    assert (states, transitions, illegal) == (graph.states, graph.transitions, graph.illegal)
    assert graph.outcomes["round: OUT_OF_PAGES"] > 0
    assert graph.outcomes["round: done"] > 0


@pytest.mark.usefixtures("no_workers")
def test_the_cleanup_mode_is_part_of_the_layer() -> None:
    """A mode that leaves finished sequences in their slots reaches other states."""
    kept = instance("scheduling", sizes((1, 1, 2, 2)), CleanupMode.NONE)
    search, found = searched(kept)

    assert (None, True) == (found, search.graph.complete)
    assert search.graph.states > 48
    assert any(state.finished for state in search.states)


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("stop_len", [1, 2])
def test_requests_end_by_their_limit_and_by_a_stop_sequence(stop_len: int) -> None:
    """Both ends are reached, with stop sequences of one token and of two."""
    search, _ = searched(instance("scheduling", sizes((1, 1, 2, 2)), stop_len=stop_len))

    ended = {(one.request, len(one.tokens), one.reason) for s in search.states for one in s.outputs}
    assert {(1, 1, FinishReason.LIMIT), (2, 2, FinishReason.STOP)} <= ended


@pytest.mark.usefixtures("no_workers")
def test_a_bounded_search_is_not_complete() -> None:
    """It ends with the level that reaches the bound."""
    search, found = searched(SMALLEST, most_states=8)

    assert (None, False) == (found, search.graph.complete)
    assert sum(search.graph.levels[:-1]) < 8 <= search.graph.states < 17


@pytest.mark.usefixtures("no_workers")
def test_each_step_is_visited_with_its_successor() -> None:
    """A visitor gets every step: a refusal stays in its state, other successors are in the list."""
    search, steps = Search(SMALLEST, Graph()), list[tuple[int, int]]()

    def visit(number: int, state: State, step: object, successor: int) -> None:
        assert search.states[number] == state
        assert getattr(step, "after", None) in (None, search.states[successor])
        steps.append((number, successor))

    assert search.run(update=silent, visit=visit) is None
    assert search.graph.outcomes.total() == len(steps)
    assert {*range(48)} == {number for number, _ in steps} == {after for _, after in steps}


def test_a_layer_must_be_known() -> None:
    """The rung sharing, which is explored as packed states, is no instance."""
    with pytest.raises(InvalidInput, match="lifecycle, scheduling"):
        instance("sharing", sizes((1, 1, 1, 1)))


def test_refusals_for_want_of_room_are_legal() -> None:
    """An action is in the legal alphabet if it is refused for lack of capacity alone."""
    for reason in Reason:
        alone = frozenset([Refusal(reason, 0, 0)])
        assert legal(alone) == (reason.family is Family.CAPACITY)
        assert not legal(alone | {Refusal(Reason.SLOT_USED, 0, 0)})
    assert legal(frozenset())


def tampered(**changed: Any) -> State:
    """Two written tokens in slot 0 of the longer contents instance, with a component changed."""
    state = after(LONGER, "reserve(0)", "assign(0, 1)", "allocate(0, 2)", "write(0, 2)")
    assert expanded(LONGER, state).wrong is None
    return state._replace(**changed)


@pytest.mark.parametrize(
    ("clause", "changed"),
    [
        ("CONS", {"counts": (1, 1)}),
        ("UAF", {"counts": (0, 0)}),
        ("RC", {"counts": (2, 0)}),
        ("ROW", {"counts": (1, 1), "sequences": (Sequence((0, 1), (1, 1, 1), 2, 2), None)}),
        ("LEN", {"sequences": (Sequence((0,), (1,), 2, 2), None)}),
        ("CONTENT", {"cells": (((1,), (2, 1)), ((), ()))}),
        ("CONTENT", {"cells": (((1,), POISON), ((), ()))}),
    ],
    ids=str,
)
def test_a_tampered_state_is_caught(clause: str, changed: dict[str, object]) -> None:
    """A state that breaks a clause is named before any move is taken from it."""
    found = expanded(LONGER, tampered(**changed))

    assert found.wrong is not None
    assert (clause, None) == (found.wrong[0], found.wrong[2])
    assert () == found.steps


def replaced(monkeypatch: pytest.MonkeyPatch, kind: type, make: Callable[[Effect], Effect]) -> None:
    """Replace the effect of an action in every machine that is explored."""
    another_rule(monkeypatch, kind, lambda rule: {"effect": make(rule.effect)})


def another_rule(
    monkeypatch: pytest.MonkeyPatch, kind: type, change: Callable[[Rule[Any]], dict[str, Any]]
) -> None:
    """Change the rule of an action in every machine that is explored."""
    honest: Any = Instance.__dict__["machine"]

    def machine(chosen: Instance) -> Machine:
        right: Machine = honest.fget(chosen)
        return planted(right, kind, **change(right.rules[kind]))

    monkeypatch.setattr(Instance, "machine", property(machine))


def patched(monkeypatch: pytest.MonkeyPatch, module: object, name: str, make: object) -> None:
    """Plant a bug: `make` makes a wrong function from the real one."""
    assert callable(make)
    monkeypatch.setattr(module, name, make(getattr(module, name)))


def test_a_clone_that_is_not_counted_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """RC, in the state that the clone leads to: the shared page has one count and two names."""
    parent = after(LONGER, "reserve(0)", "assign(0, 1)", "allocate(0, 2)", "write(0, 2)")

    def make(clone: Effect) -> Effect:
        return lambda machine, state, *rest: clone(machine, state, *rest)._replace(
            counts=state.counts
        )

    replaced(monkeypatch, act.Clone, make)
    child = after(LONGER, "reserve(0)", "assign(0, 1)", "allocate(0, 2)", "write(0, 2)")
    child = LONGER.machine.step(child, act.Clone(0, 1, 1))

    assert expanded(LONGER, parent).wrong is None
    clause, message, move = wrong(LONGER, child)
    assert ("RC", None) == (clause, move)
    assert "counts[0] is 1, should be 2" in message


def test_a_clone_that_copies_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ladder sees it on the transition: below, the child has written what it knows."""
    parent = after(LONGER, "reserve(0)", "assign(0, 1)", "allocate(0, 1)", "write(0, 1)")
    patched(monkeypatch, sharing, "copy_page", lambda _: lambda cells, _from, _to: cells)

    clause, message, move = wrong(LONGER, parent)

    assert ("ladder", "clone(0, 1)") == (clause, move)
    assert "sharing to pages on Clone" in message


def test_pages_that_do_not_come_back_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that forgets a page is CONS, in the first state that has one."""
    held = after(LONGER, "reserve(0)", "allocate(0, 1)")
    patched(monkeypatch, pool, "release", lambda _: lambda counts, _pages: counts)

    assert ("CONS", "freeing everything leaves pages in use", None) == wrong(LONGER, held)


def test_a_write_into_a_neighbour_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """FRAME, on the transition: a cell of the other slot is lost."""
    first = ("reserve(0)", "assign(0, 1)", "allocate(0, 1)", "write(0, 1)")
    state = after(CONTENTS, *first, "reserve(1)", "assign(1, 2)", "allocate(1, 1)")

    def make(write: Effect) -> Effect:
        def clobber(machine: Machine, before: State, action: Any, chosen: Any) -> State:
            done = write(machine, before, action, chosen)
            lost = kill(done.cells, [0])
            return done._replace(cells=lost) if action.batch and before.cells[0][0] else done

        return clobber

    replaced(monkeypatch, act.Write, make)
    clause, message, move = wrong(CONTENTS, state)

    assert ("FRAME", "write(1, 1)") == (clause, move)
    assert "slot 0 position 0" in message


@pytest.mark.parametrize("kept", ["outputs", "queue"])
def test_a_reset_that_keeps_something_is_caught(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RESET: in either mode nothing of the old state is left."""
    prefill = "prefill(1: (1,) x 1, 1)" if kept == "outputs" else "prefill(1: (1,) x 1, 3)"
    state = after(SMALLEST, prefill)
    assert state.outputs or (kept == "queue" and state.queue)

    def make(effect: Effect) -> Effect:
        def forget_less(machine: Machine, before: State, action: Any, chosen: Any) -> State:
            done = effect(machine, before, action, chosen)
            if kept == "queue":
                return done._replace(queue=before.queue)
            return done._replace(outputs=before.outputs)

        return forget_less

    replaced(monkeypatch, act.Reset, make)

    assert ("RESET", "a reset does not give the initial state", "reset(logical)") == wrong(
        SMALLEST, state
    )


@pytest.mark.parametrize(
    ("always", "says"),
    [(False, "yet takes no page above 1"), (True, "and in a larger pool as well")],
)
def test_a_refusal_in_vain_is_caught(
    always: bool,  # noqa: FBT001 - pytest passes it by name
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ATOMIC: a refusal for lack of pages is wrong if enough are free, or if no pool is enough."""
    state = after(LONGER, "reserve(0)", "assign(0, 1)", "allocate(0, 2)")

    @check(Reason.OUT_OF_PAGES)
    def miser(machine: Machine, table: State, action: act.Allocate) -> Faults:
        wanted, free = machine.pages_wanted(table, action), pool.free_count(table.counts)
        if (wanted and always) or wanted >= free:
            yield wanted, free

    another_rule(
        monkeypatch,
        act.Allocate,
        lambda rule: {"stages": (*rule.stages[:-1], *in_order(miser))},
    )
    clause, message, move = wrong(LONGER, state)

    assert ("ATOMIC", "allocate(0, 1)") == (clause, move)
    assert says in message


def test_a_refusal_for_want_of_pages_is_right_where_none_is_free() -> None:
    """In a larger pool the same action takes a page past the end of this pool."""
    full = after(LONGER, "reserve(0)", "allocate(0, 2)", "allocate(0, 2)", "reserve(1)")
    found = expanded(LONGER, full)
    short = {step.move for step in found.steps if step.mask == 1 << Reason.OUT_OF_PAGES.value}

    assert found.wrong is None
    assert {"allocate(1, 1)", "allocate(1, 2)"} == {str(LONGER.moves[move]) for move in short}


@pytest.mark.usefixtures("no_workers")
def test_a_planted_bug_is_told_by_a_shortest_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends at the first wrong state, with a shortest history to it."""
    patched(monkeypatch, pool, "release", lambda _: lambda counts, _pages: counts)

    search, found = searched(instance("lifecycle", sizes((1, 1, 2, 1))))

    assert found is not None
    assert ("CONS", None) == (found.clause, found.move)
    assert "reserve(0), allocate(0, 1)" == told(search.instance, search.graph, found)
    assert not search.graph.complete


@pytest.mark.usefixtures("no_workers")
def test_a_planted_bug_of_a_move_is_told_with_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last move of the history is the one that shows the bug."""
    patched(monkeypatch, sharing, "copy_page", lambda _: lambda cells, _from, _to: cells)

    search, found = searched(instance("lifecycle", sizes((2, 2, 2, 1))), most_states=100)

    assert found is not None
    history = "reserve(0), assign(0, 1), allocate(0, 1), write(0, 1), clone(0, 1)"
    assert ("ladder", history) == (found.clause, told(search.instance, search.graph, found))


@pytest.mark.usefixtures("no_workers")
def test_whichever_move_shows_a_bug_is_the_last_that_is_told() -> None:
    """Also the first one of the alphabet; None stands for no move."""
    search, _ = searched(instance("lifecycle", sizes((1, 1, 1, 1))))
    moves = search.instance.moves

    for number in (None, *range(len(moves))):
        text = told(search.instance, search.graph, Wrong("CONS", "", 0, number))
        assert ("" if number is None else str(moves[number])) == text
