"""Generators of boundary cases: they reach the edge of the pool exactly."""

from spec_engine import small
from spec_tools import MACHINE, SERVING

from conformance.fuzzing.state_machine import spread
from conformance.rungs import admission
from conformance.rungs import scheduling as scheduling_kit
from spec.machines.actions import Admit
from spec.state import State
from spec.vocabulary import CleanupMode, default_limits

TIGHT = small(pages=10, page_size=3, slots=4, pages_per_seq=4)
DRAWS = [spread(drawn) for drawn in range(200)]


def initial() -> State:
    """The initial state of a pool that is too small for its slots."""
    return SERVING.initial(TIGHT, default_limits(TIGHT), CleanupMode.INCREMENTAL)


def test_draws_are_spread_evenly() -> None:
    """Zero stays zero, no two draws meet, and each bit is set in about half of them."""
    assert 0 == spread(0)
    assert 1000 == len({spread(drawn) for drawn in range(1000)})
    set_bits = [sum(spread(drawn) >> bit & 1 for drawn in range(1000)) for bit in range(64)]
    assert (400, 600) < (min(set_bits), max(set_bits)) < (501, 601)


def test_an_exact_fit_shares_pages_and_then_takes_what_is_left() -> None:
    """It takes at most the free pages, and more than the pool less all row entries."""
    state = initial()
    first = next(
        action
        for action in (scheduling_kit.exact_fit(state, drawn, 1) for drawn in DRAWS)
        if action.requests[0].n_generations > 1
    )
    shared = MACHINE.step(state, first)
    counts = shared.counts
    second = scheduling_kit.exact_fit(shared, 0, 9)

    assert max(counts) > 1
    assert () == tuple(MACHINE.refusals(shared, second))
    wanted = SERVING.pages_wanted(shared, second)
    assert TIGHT.pages - sum(counts) < wanted <= counts.count(0)


def test_reservations_meet_the_pool_and_one_page_more() -> None:
    """Requests submitted one after another promise exactly the pool, or exactly one page more."""
    promised = set()
    for drawn in DRAWS:
        state = initial()
        for serial in range(1, 5):
            state = SERVING.step(state, admission.reserving(state, spread(drawn + serial), serial))
            promised.add(sum(request.pages_needed(TIGHT) for request in state.waiting))

    assert {TIGHT.pages, TIGHT.pages + 1} <= promised


def test_what_is_reserved_can_be_admitted() -> None:
    """The first request that takes all remaining pages fits."""
    for drawn in DRAWS:
        state = SERVING.step(initial(), admission.reserving(initial(), drawn, 1))
        assert () == tuple(SERVING.refusals(state, Admit()))
