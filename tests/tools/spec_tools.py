"""What the tests of the specification share: a machine in one call, and steps that check it all."""

from spec import clauses, ladder, view
from spec.cells import Cells
from spec.machines import scheduling
from spec.machines.actions import Free
from spec.table import Entry, Sequence
from spec.vocabulary import CleanupMode, Geometry, Limits, default_limits


def geometry(*, pages: int, page_size: int, slots: int, pages_per_seq: int) -> Geometry:
    """The sizes, in one line."""
    return Geometry(pages=pages, page_size=page_size, slots=slots, pages_per_seq=pages_per_seq)


def limits(sizes: Geometry, **changed: int) -> Limits:
    """The default limits, some of them changed."""
    standard = default_limits(sizes)
    names = ("queue", "prefill_tokens", "prefill_seqs", "round_tokens", "rounds", "stops")
    kept = {name: getattr(standard, name) for name in (*names, "stop_len", "outputs")}
    return Limits(**{**kept, **changed})


def machine(
    sizes: Geometry, cleanup: CleanupMode = CleanupMode.NONE, **changed: int
) -> scheduling.State:
    """A new scheduling machine."""
    return scheduling.initial(sizes, limits(sizes, **changed), cleanup)


def climb(state: scheduling.State, *actions: scheduling.Action) -> scheduling.State:
    """Take actions, checking every edge of the ladder and every clause at each."""
    for action in actions:
        after = ladder.check_scheduling(state, action)
        judge(state, after)
        state = after
    return state


def judge(before: scheduling.State, after: scheduling.State) -> None:
    """Every clause that has a predicate holds of a step of the specification."""
    seen = view.of(after)
    wrong = [*clauses.violations(seen), *clauses.step_violations(view.of(before), seen)]
    assert not wrong, wrong


def span(slot: int, start: int, stop: int) -> tuple[Entry, ...]:
    """The positions from `start` to `stop - 1` of a slot."""
    return tuple((slot, position) for position in range(start, stop))


def counts(state: scheduling.State) -> tuple[int, ...]:
    """The reference counts."""
    return state.lifecycle.sharing.counts


def cells(state: scheduling.State) -> Cells:
    """The pool."""
    return state.lifecycle.sharing.pages.cells


def sequence(state: scheduling.State, slot: int) -> Sequence:
    """The sequence in a used slot."""
    found = state.sequences[slot]
    assert found is not None
    return found


def rows(state: scheduling.State) -> tuple[tuple[int, ...] | None, ...]:
    """The row of each slot, None where it is unused."""
    return tuple(None if found is None else found.row for found in state.sequences)


def everything_freed(state: scheduling.State) -> scheduling.State:
    """Free every used slot, lowest first."""
    for slot, found in enumerate(state.sequences):
        if found is not None:
            state = scheduling.step(state, Free(slot))
    return state
