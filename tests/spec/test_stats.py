"""Statistics: the number of pages that each slot holds, and totals that add up."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from spec_draws import propose
from spec_tools import MACHINE, climb, counts, geometry, machine, rows

from spec import stats
from spec.machines.actions import Clone, Free, Prefill, Propose, Reserve
from spec.stats import Stats, Totals
from spec.vocabulary import Params, Request

SIZES = geometry(pages=8, page_size=4, slots=3, pages_per_seq=4)


def test_a_timeline_by_hand() -> None:
    """A prompt of six in pages of four, a clone, the parent's end, and a bare slot."""
    # Rows [0,1]; [0,1] and [0,2]; [0,2] alone; [0,2] and [].
    asked = Request(id=0, prompt=(1,) * 6, params=Params(max_new=5))
    run = [machine(SIZES)]
    for action in (Prefill((asked,)), Clone(0, choice=1), Free(0), Reserve()):
        run.append(climb(run[-1], action))

    assert (
        Stats(0, 0, 8, 0, (0, 0, 0)),
        Stats(1, 2, 6, 1, (2, 0, 0)),
        Stats(2, 3, 5, 2, (2, 2, 0)),
        Stats(1, 2, 6, 1, (0, 2, 0)),
        Stats(2, 2, 6, 1, (0, 2, 0)),
    ) == stats.timeline(run)


def test_drafts_are_in_the_queue() -> None:
    """The drawn token and two drafts are queued: three entries."""
    asked = Request(id=0, prompt=(1, 2), params=Params(max_new=6))
    state = climb(climb(machine(SIZES), Prefill((asked,))), Propose(0, (7, 8)))

    assert 3 == stats.NAMED["queued"].of(state, Totals())


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_statistics_add_up(seed: int) -> None:
    """Pages in use and free pages are the pool; rows together name each page count times."""
    rng, state = Random(seed), machine(SIZES)
    for number in range(20):
        action = propose(state, rng, 10 * number)
        if not MACHINE.refusals(state, action):
            state = MACHINE.step(state, action)
    seen = stats.of(state)

    assert SIZES.pages == seen.pages_in_use + seen.free_pages
    assert sum(counts(state)) == sum(seen.pages_per_slot)
    assert max(counts(state)) == seen.largest_count
    assert 3 - rows(state).count(None) == seen.active
