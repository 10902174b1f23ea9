"""Requests served by the host: the tokens of naive decode at all sizes, in order, or refused."""

import pytest
from deep import deep_after
from engine_tools import GEOMETRY, KEPT, SETUPS, assert_identical, params, request
from hypothesis import given, note, settings
from hypothesis import strategies as st

from impl import host
from impl.engine import Engine, Key, Output, Stats
from impl.host import Host, HostState, Stalled
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec import ladder
from spec.machines import admission, naive
from spec.machines.actions import (
    Action,
    Admit,
    Assign,
    Free,
    Generate,
    Reserve,
    Reset,
    Submit,
    TakeOutputs,
)
from spec.vocabulary import (
    CleanupMode,
    FinishReason,
    Geometry,
    Limits,
    Params,
    Reason,
    Refused,
    Request,
    ResetMode,
    Tokens,
)

SERVING = SETUPS[CleanupMode.INCREMENTAL]
NARROW = Setup(
    geometry=Geometry(pages=4, page_size=4, slots=3, pages_per_seq=2),
    limits=Limits(
        queue=3,
        prefill_tokens=8,
        prefill_seqs=1,
        round_tokens=1,
        rounds=1,
        stops=2,
        stop_len=3,
        outputs=3,
    ),
    model=IntegerModel(),
)
"""Other pages, with one prompt, one token and one round at a time."""
RELEASING = {"incremental": SERVING, "end": SETUPS[CleanupMode.END], "one by one": NARROW}
Results = dict[Key, tuple[Tokens, FinishReason]]


def alone(*requests: Request) -> Results:
    """The tokens and reasons of naive decoding, by request and choice."""
    return {
        (one.id, choice): naive.generate(one.prompt, one.params, choice)
        for one in requests
        for choice in range(one.n_generations)
    }


def results(outputs: dict[Key, Output]) -> Results:
    """Tokens and reasons by (id, choice)."""
    return {key: (output.tokens, output.reason) for key, output in outputs.items()}


def fits(setup: Setup, one: Request) -> bool:
    """Whether a request could run in an empty engine of this setup."""
    return not any(admission.fit_refusals(setup.geometry, setup.limits, one))


@st.composite
def workloads(draw: st.DrawFn, setup: Setup, most: int = 6) -> tuple[Request, ...]:
    """Requests that fit, with lengths around page boundaries, several choices and some stops."""
    found = []
    for number in range(draw(st.integers(1, most))):
        prompt = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=5)))
        how = params(
            draw(st.integers(1, 3)),
            temperature=draw(st.sampled_from([0.0, 0.7])),
            seed=draw(st.integers(0, 2)),
        )
        if draw(st.booleans()):
            text, _ = naive.generate(prompt, how)
            how = params(how.max_new, text[-2:], (*prompt[-1:], *text[:1]), seed=how.seed)
        choices = draw(st.integers(1, setup.geometry.slots))
        one = Request(id=number, prompt=prompt, params=how, n_generations=choices)
        found.append(one if fits(setup, one) else request(number, prompt, 1))
    return tuple(found)


@pytest.mark.parametrize("name", deep_after(1, RELEASING))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_choice_gets_the_tokens_it_would_get_alone(name: str, data: st.DataObject) -> None:
    """Any mix of more requests than fit gets the outputs of naive decoding, and leaves no state."""
    setup = RELEASING[name]
    requests = data.draw(workloads(setup))
    server = Host(Engine(setup))

    outputs = server.generate(requests)

    assert alone(*requests) == results(outputs)
    assert HostState() == server.state
    stats = server.stats()
    assert (0, 0, setup.geometry.pages) == (stats.active, stats.queued, stats.free_pages)


@settings(max_examples=15, deadline=None)
@given(requests=workloads(KEPT))
def test_without_cleanup_what_was_served_is_kept_and_the_rest_waits(
    requests: tuple[Request, ...],
) -> None:
    """Serving stalls when slots, pages or choices run out, and resets let the rest be served."""
    server, served, left = Host(Engine(KEPT)), Results(), requests
    while left:
        try:
            served |= results(server.generate(left))
            left = ()
        except Stalled as stalled:
            served |= results(stalled.outputs)
            left = server.state.waiting
        server.reset()

    assert alone(*requests) == served


def test_a_stall_says_why_and_loses_nothing() -> None:
    """If two requests fill the slots, the third stalls with reasons, and all outputs are kept."""
    requests = [request(number, (number,), 2, 2) for number in range(3)]
    server = Host(Engine(KEPT))

    with pytest.raises(Stalled, match="NO_FREE_SLOT: saw 2, allowed at most 0 choices") as caught:
        server.generate(requests)

    reasons = {refusal.reason for refusal in caught.value.refusals}
    assert {Reason.NO_FREE_SLOT, Reason.OUT_OF_PAGES} == reasons
    assert alone(*requests[:2]) == results(caught.value.outputs)
    assert (requests[2],) == server.state.waiting
    assert requests[:2] == list(server.state.admitted)


def test_a_stalled_round_says_why() -> None:
    """Cells that were allocated without the host and never written stall the rounds."""
    engine = Engine(SERVING)
    server = Host(engine)
    server.submit(request(1, (1,), 3))
    server.admit()
    engine.allocate([(0, 1)])

    with pytest.raises(Stalled, match="UNWRITTEN"):
        server.generate([])


def test_of_two_outputs_with_one_name_none_is_lost() -> None:
    """A request waits while an output of its id, which the host did not admit, is not returned."""
    engine, (without, waits) = Engine(SERVING), (request(1, (5, 6), 3), request(1, (7,), 2))
    server = Host(engine)
    server.submit(waits)
    engine.prefill([without])

    with pytest.raises(Stalled, match="CHOICE_TAKEN: saw 1") as caught:
        server.generate([])

    assert alone(without) == results(caught.value.outputs)
    assert alone(waits) == results(server.generate([]))


def test_a_pool_that_fits_exactly_is_filled() -> None:
    """Two pages shared by three choices and two more for each fill the pool, and are served."""
    one = request(1, (1, 2, 3, 4, 5), 3, 3, temperature=1.0)
    server, most = Host(Engine(SERVING)), 0
    server.submit(one)
    server.admit()
    while server.stats().queued:
        server.generate_rounds()
        most = max(most, server.stats().pages_in_use)

    assert GEOMETRY.pages == one.pages_needed(GEOMETRY)
    assert alone(one) == results(server.generate([]))
    assert most <= GEOMETRY.pages


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (request(9, (1,) * 6, 3), Reason.TOO_LONG),
        (request(9, (1,), 1, stops=((1,), (2,), (3,))), Reason.STOPS),
        (request(9, (1,), 1, stops=((1, 2, 3, 4),)), Reason.STOPS),
        (request(9, (1,), 6, 3), Reason.NEVER_FITS),
        (request(9, (1,), 1, 5), Reason.NEVER_FITS),
        (request(1, (2,), 1), Reason.CHOICE_TAKEN),
    ],
)
def test_one_refused_request_keeps_the_whole_list_out(wrong: Request, reason: Reason) -> None:
    """A refused request leaves host and engine unchanged, and the valid ones can be sent again."""
    engine = Engine(SERVING)
    server, good = Host(engine), request(1, (1, 2), 2)
    before = engine.extract()

    with pytest.raises(Refused) as caught:
        server.generate([good, wrong])

    assert frozenset({reason}) == caught.value.reasons
    assert HostState() == server.state
    assert_identical(before, engine.extract())
    assert alone(good) == results(server.generate([good]))


def test_an_id_is_free_again_when_its_outputs_are_taken() -> None:
    """An id is taken while its request waits, runs or has outputs, and is free after that."""
    server, one = Host(Engine(SERVING)), request(2**31 - 1, (1,), 1, 2)
    for step in (server.admit, server.generate_rounds):
        server.submit(one) if step == server.admit else None
        with pytest.raises(Refused, match="CHOICE_TAKEN"):
            server.submit(one)
        step()
    with pytest.raises(Refused, match="CHOICE_TAKEN"):
        server.submit(one)

    assert 2 == len(server.take_outputs())
    assert alone(one) == results(server.generate([one]))


def test_a_reset_forgets_waiting_and_admitted_requests() -> None:
    """After a reset the same ids can be served again."""
    server = Host(Engine(SERVING))
    requests = [request(number, (1, number), 3, 2) for number in range(4)]
    for mode in ResetMode:
        for one in requests:
            server.submit(one)
        server.admit()
        server.generate_rounds()
        server.reset(mode)
        assert HostState() == server.state

    assert alone(*requests) == results(server.generate(requests))


def stats(**changed: object) -> Stats:
    """The statistics of an empty engine, with some numbers changed."""
    numbers = {
        "active": 0,
        "pages_in_use": 0,
        "free_pages": GEOMETRY.pages,
        "idle_pages": 0,
        "largest_count": 0,
        "queued": 0,
        "outputs": 0,
        **dict.fromkeys(("hit_pages", "stored_pages", "removed_pages", "evicted_pages"), 0),
        **dict.fromkeys(("in_flight", "held_slots", "promised"), 0),
        "occupants": frozenset(),
        "untaken": frozenset(),
    }
    return Stats(**{**numbers, **changed})  # type: ignore[arg-type]


def test_nobody_overtakes_the_oldest() -> None:
    """A short request behind one that does not fit waits, although it would fit itself."""
    large, small = request(2, (1,), 6, 2), request(3, (1,), 1)
    state = HostState(waiting=(large, small), admitted=(request(1, (1,), 2),))

    assert () == host.admissible(state, SERVING, stats(active=1, free_pages=7))
    assert (large,) == host.admissible(HostState((large, small)), SERVING, stats())
    assert (small,) == host.admissible(HostState((small,), state.admitted), SERVING, stats())


def test_reserved_pages_are_not_given_to_others() -> None:
    """Pages that are free but reserved for an admitted request are not given to another one."""
    admitted, other = request(1, (1,), 7), request(2, (1, 2, 3, 4), 4)
    state = HostState(waiting=(other,), admitted=(admitted,))
    one_more = HostState(waiting=(request(3, (1,), 8 - 1), other), admitted=(admitted,))

    assert (other,) == host.admissible(state, SERVING, stats(active=1, free_pages=7))
    assert other not in host.admissible(one_more, SERVING, stats(active=1, free_pages=7))


def test_a_reservation_ends_when_no_slot_holds_the_request() -> None:
    """A request whose outputs wait to be taken reserves no page."""
    held, gone = request(1, (1,), 2, 2), request(2, (1,), 2)
    seen = stats(occupants=frozenset({(1, 1)}), untaken=frozenset({(2, 0), (1, 0)}))

    assert HostState((), (held,)) == host.release(HostState((), (held, gone)), seen)


def test_a_choice_taken_past_the_host_holds_up_the_line() -> None:
    """If a choice of the oldest request is taken without the host, it and all behind it wait."""
    engine = Engine(KEPT)
    server = Host(engine)
    first, second = request(1, (1,), 2, 2), request(2, (1,), 2)
    for one in (first, second):
        server.submit(one)
    engine.assign(engine.reserve(), (1,), params(1), request=1, choice=1)

    with pytest.raises(Refused) as caught:
        server.admit()

    assert frozenset({Reason.CHOICE_TAKEN}) == caught.value.reasons
    engine.free(0)
    assert (first, second) == server.admit()


def test_a_reservation_does_not_come_back_with_the_id() -> None:
    """A request that has left reserves no pages, even if another slot gets its id."""
    engine = Engine(KEPT)
    server = Host(engine)
    server.submit(request(1, (1,), 7))
    server.admit()
    engine.free(0)
    server.settle()
    engine.assign(engine.reserve(), (1,), params(1), request=1)
    server.submit(request(2, (1, 1), 6, 2))

    assert (2,) == tuple(one.id for one in server.admit())


requests = st.builds(
    Request,
    id=st.integers(0, 5),
    prompt=st.sampled_from([1, 2, 3, 4, 9]).map(lambda length: (1,) * length),
    params=st.builds(
        lambda max_new, stops: params(max_new, *stops),
        st.sampled_from([2, 4, 3, 1, 7]),
        st.sampled_from([(), (), (), (), ((1,),) * 3, ((1, 2, 3, 4),)]),
    ),
    n_generations=st.sampled_from([1, 2, 3, 1, 2, 3, 5]),
)
by_hand = st.builds(
    Assign,
    st.integers(0, 3),
    st.just((1,)),
    st.just(Params(max_new=1)),
    st.integers(0, 5),
    st.integers(0, 1),
)
actions = st.one_of(
    requests.map(Submit),
    requests.map(Submit),
    st.sampled_from([Admit(), Generate()]),
    st.sampled_from([Admit(), Generate(), Admit(), TakeOutputs(), TakeOutputs(), Reset()]),
    st.one_of(st.just(Reserve()), st.just(Reserve()), st.integers(0, 3).map(Free), by_hand),
)


def take(server: Host, engine: Engine, action: Action) -> None:
    """Take an action on the host, or on its engine without the host."""
    match action:
        case Submit(one):
            server.submit(one)
        case Admit():
            server.admit()
        case Generate():
            server.generate_rounds()
        case TakeOutputs():
            server.take_outputs()
        case Reset():
            server.reset()
        case Reserve():
            engine.reserve()
        case Free(int(slot)):
            engine.free(slot)
        case Assign(slot, prompt, given_params):
            server.settle()
            engine.assign(slot, prompt, given_params, request=action.request, choice=action.choice)


@pytest.mark.parametrize("cleanup", deep_after(1, CleanupMode))
@settings(max_examples=30, deadline=None)
@given(history=st.lists(actions, min_size=12, max_size=40))
def test_the_host_admits_and_refuses_as_the_specification_does(
    cleanup: CleanupMode, history: list[Action]
) -> None:
    """After each action, some without the host, the same requests wait and are admitted."""
    setup = SETUPS[cleanup]
    engine = Engine(setup)
    server = Host(engine)
    state = ladder.machine("admission").initial(setup.geometry, setup.limits, cleanup)
    for action in history:
        expected = frozenset(
            one.reason for one in ladder.machine("admission").refusals(state, action)
        )
        note(f"{action}: {expected}")
        try:
            take(server, engine, action)
            seen: frozenset[Reason] = frozenset()
            state = ladder.machine("admission").step(state, action)
        except Refused as refused:
            seen = refused.reasons
        on_host = isinstance(action, Submit | Admit)
        assert expected == seen if on_host else bool(expected) == bool(seen)
        server.settle()
        assert HostState(state.waiting, state.admitted) == server.state
