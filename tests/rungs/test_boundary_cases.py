"""Generators of boundary cases: they reach the edge of the pool exactly."""

from functools import partial

import pytest
from attrs import asdict
from spec_engine import make, small
from spec_tools import MACHINE, SERVING

from conformance.fuzzing import settings
from conformance.fuzzing.state_machine import Campaign, Session
from conformance.rungs import admission
from conformance.rungs import pages as pages_kit
from conformance.rungs import scheduling as scheduling_kit
from conformance.rungs.shared_generators import WIDTH, spread
from spec.machines.actions import Admit, Allocate, Prefill, Reserve
from spec.state import State
from spec.vocabulary import CleanupMode, Params, Request, default_limits

TIGHT = small(pages=10, page_size=3, slots=4, pages_per_seq=4)
DRAWS = [spread(drawn) for drawn in range(200)]


def initial() -> State:
    """The initial state of a pool that is too small for its slots."""
    return SERVING.initial(TIGHT, default_limits(TIGHT), CleanupMode.INCREMENTAL)


def test_draws_are_spread_evenly() -> None:
    """Zero stays zero, no two draws meet, and each bit is set in about half of them."""
    assert 0 == spread(0)
    assert 1000 == len({spread(drawn) for drawn in range(1000)})
    set_bits = [sum(spread(drawn) >> bit & 1 for drawn in range(1000)) for bit in range(WIDTH)]
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


def test_several_choices_take_what_is_left_or_one_page_more() -> None:
    """Each has a copy of the partial page: a count of one copy for each prompt shows."""
    sizes = small(pages=8, page_size=3, slots=4, pages_per_seq=4)
    target = Campaign(make=partial(settings.make, make, sizes, CleanupMode.INCREMENTAL))
    met = set()
    for drawn in DRAWS:
        session = Session(target, "scheduling")
        action = scheduling_kit.choices_at_edge(session, drawn)
        assert isinstance(action, Prefill)
        if scheduling_kit.copies_of_choices(session.state, action):
            free = session.state.counts.count(0)
            met.add(SERVING.pages_wanted(session.state, action) - free)

    assert {0, 1} <= met


def test_a_round_at_full_outputs_packs_more_than_it_draws() -> None:
    """There is room for as many outputs as it draws, and not for all that it packs."""
    sizes = small(pages=8, page_size=3, slots=4, pages_per_seq=4)
    target = Campaign(make=partial(settings.make, make, sizes, CleanupMode.INCREMENTAL))
    for drawn in DRAWS:
        session = Session(target, "scheduling")
        session.take(Prefill((Request(id=1, prompt=(0,), params=Params(max_new=8)),)))
        session.take(scheduling_kit.round_at_full_outputs(session, drawn))

    assert target.coverage.corners[scheduling_kit.DRAWS_FILL_OUTPUTS]


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


@pytest.mark.parametrize("pages", [1, 2, 3, 4, 5])
def test_a_batch_is_fitted_to_a_number_of_pages(pages: int) -> None:
    """Slots with room take exactly so many pages together; each takes one if there are enough."""
    state = SERVING.step(SERVING.step(initial(), Reserve(0)), Reserve(2))
    state = SERVING.step(state, Allocate(((0, 0), (0, 1))))

    fitted = Allocate(tuple(pages_kit.fitted(state, (0, 2), pages)))

    assert () == tuple(SERVING.refusals(state, fitted))
    assert min(pages, 4) == SERVING.pages_wanted(state, fitted)
    assert pages == 1 or {0, 2} == {entry[0] for entry in fitted.batch if entry}


@pytest.mark.parametrize("lacking", [0, 1])
def test_the_pool_is_filled_up_to_what_an_action_takes(lacking: int) -> None:
    """Two slots without a page take the last free pages together, or are one page short."""
    target = Campaign(make=partial(settings.make, make, TIGHT, CleanupMode.NONE))
    session = Session(target, "lifecycle")
    for _ in range(2):
        session.take(Reserve())

    last = pages_kit.at_edge(session, 0, Allocate(((0, 0), (1, 0))), short=lacking > 0)

    assert {0, 1} == pages_kit.appended(session.state, last).keys()
    free = session.state.counts.count(0)
    assert free + lacking == SERVING.pages_wanted(session.state, last)


def test_a_successor_lacks_one_value_of_the_request_before_it() -> None:
    """It is served in the same slot, and for each value some successor lacks it alone."""
    lacking = set()
    for drawn in DRAWS:
        target = Campaign(make=partial(settings.make, make, TIGHT, CleanupMode.INCREMENTAL))
        session = Session(target, "scheduling")
        scheduling_kit.successor(session, drawn)
        prefills = [step for step in session.history if isinstance(step, Prefill)]
        if len(prefills) == 2:
            first, then = (vars_of(step.requests[0]) for step in prefills)
            (name,) = (name for name in first if name != "id" and first[name] != then[name])
            lacking.add(name)

    assert {"stops", "temperature", "seed", "max_new", "prompt", "n_generations"} == lacking


def vars_of(request: Request) -> dict[str, object]:
    """The values of a request and of its parameters, by name."""
    values = {**asdict(request, recurse=False), **asdict(request.params)}
    del values["params"]
    return values
