"""The adapter of the reference engine: all that it shows is what the specification has."""

import inspect
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, Final, cast

import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from deep import deep_after
from spec_engine import SpecEngine, small

from conformance.engines.driving import entries_of
from conformance.engines.lost_state import calls_of_engine, calls_of_host
from conformance.engines.ours import ACTIONS, Ours
from conformance.engines.serving import Serving
from conformance.engines.trouble import Trouble, is_main_thread
from conformance.lockstep.called import called
from conformance.lockstep.lockstep import Lockstep
from conformance.protocol import Action, EngineFailed, Poison
from conformance.seeded_bugs import forget_compiled
from impl import engine, entries, host, together
from impl.engine import Engine, Output, Stats
from impl.host import Host, HostState, submit
from impl.interrupts import hold_interrupts
from impl.setup import Setup
from impl.state import State, blank_metadata, pages
from impl.state.packing import Packed, pack
from impl.steps.answer import Answer, done, nothing
from impl.together import Together
from spec.fields import VIEWED
from spec.machines import actions as act
from spec.vocabulary import (
    INVALID,
    CleanupMode,
    Params,
    Reason,
    Refusal,
    Request,
    ResetMode,
    Tokens,
    default_limits,
)

SIZES: Final = small(pages=16, page_size=2, slots=4, pages_per_seq=4)
GIVEN: Final = (SIZES, default_limits(SIZES), CleanupMode.END)
REQUESTS: Final = tuple(
    Request(id=number, prompt=(5, number), params=Params(max_new=most), n_generations=choices)
    for number, most, choices in ((1, 1, 1), (2, 4, 2), (3, 1, 1), (4, 3, 1))
)
"""Some that end at once and others that go on, so that a turn serves a part of them."""
MIXED: Final[tuple[Action, ...]] = (
    act.Submit(REQUESTS[1]),
    act.Submit(REQUESTS[0]),
    act.Admit(),
    act.Generate(),
    act.Reserve(3),
    act.TakeOutputs(),
    act.Reset(ResetMode.PHYSICAL),
)
"""Actions after which statistics, outputs, log-probabilities and read sets change."""


def both(*, observed: bool = True) -> tuple[Ours, SpecEngine]:
    """The reference engine and the specification, of the same sizes."""
    return Ours(*GIVEN, observed=observed), SpecEngine(*GIVEN, actions=ACTIONS)


def plain(value: Any) -> Any:
    """A statistic without its type of collection, in which sets have no order."""
    return sorted(value) if isinstance(value, set | frozenset | tuple | list) else value


def statistics(engine: Ours | SpecEngine, right: SpecEngine) -> dict[str, Any]:
    """The statistics that the specification has, of an engine."""
    shown = engine.statistics()
    return {name: plain(shown[name]) for name in right.statistics()}


def require_alike(ours: Ours, right: SpecEngine) -> None:
    """Everything that both show is the same; a cell there is the text that it belongs to."""
    seen, expected = ours.observe(), right.observe()
    for field in VIEWED:
        value = getattr(seen, field.name)
        if value is not None and field.name != "cells":
            assert getattr(expected, field.name) == value
    for slot in range(SIZES.slots if seen.cells is not None else 0):
        assert [seen.expected(cast(Tokens, text)) for text in expected.read(slot)] == [
            *seen.read(slot)
        ]
    assert statistics(right, right) == statistics(ours, right)
    assert not hasattr(ours, "logprobs") or right.logprobs() == tuple(ours.logprobs())
    assert right.attend() == ours.attend()


@pytest.mark.parametrize("observed", deep_after(1, [True, False]))
def test_everything_is_shown_as_it_is_after_every_action(*, observed: bool) -> None:
    """View, statistics and read sets are right, and log-probabilities if they are kept."""
    ours, right = both(observed=observed)
    assert observed == hasattr(ours, "logprobs")
    for number, action in enumerate(MIXED):
        assert right.apply(action) == ours.apply(action)
        ours.poison(list(Poison)[number % len(Poison)])

        require_alike(ours, right)


@pytest.mark.parametrize("waiting", range(len(REQUESTS) + 1))
@pytest.mark.parametrize("ready", [False, True])
def test_what_is_served_is_all_that_was_not_taken(waiting: int, *, ready: bool) -> None:
    """Interrupted or not, one call returns what waits, what runs and what has finished before."""
    ours, right = both()
    first = Request(id=9, prompt=(7,), params=Params(max_new=1))
    begun: tuple[Action, ...] = (act.Submit(first), act.Admit()) if ready else ()
    for action in begun:
        right.apply(action)
        ours.apply(action)
    for request in REQUESTS[:waiting]:
        right.apply(act.Submit(request))
        ours.apply(act.Submit(request))

    served = ours.serve(REQUESTS[waiting:])

    assert list(right.serve(REQUESTS[waiting:])) == sorted(served, key=lambda one: one[:2])
    assert right.observe().counts == ours.observe().counts
    assert right.observe().outputs == ours.observe().outputs
    assert statistics(right, right) == statistics(ours, right)


SERVE = Host._serve
FULL = tuple(act.Reserve(slot) for slot in range(SIZES.slots))
"""No slot is left for a request that waits."""
QUEUED = (
    act.Reserve(0),
    act.Assign(0, (1, 2), Params(max_new=3), 8),
    act.Allocate(((0, 0),)),
    act.Enqueue(0, 5),
)
"""A token waits, and no round can be done before the allocated cell is written."""


@pytest.mark.parametrize(("begun", "requests"), [(FULL, REQUESTS[:1]), (QUEUED, ())])
@pytest.mark.parametrize("wrong", [None, (), (Refusal(Reason.STOPS, 1, 1),)])
def test_a_stall_is_told_with_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    begun: tuple[Action, ...],
    requests: tuple[Request, ...],
    wrong: tuple[Refusal, ...] | None,
) -> None:
    """A host that names nothing, or something else, fails, also where it serves the rest."""
    engines = [Ours(*GIVEN, observed=True) for _ in range(2)]
    for ours in engines:
        for action in (*begun, *map(act.Submit, requests)):
            ours.apply(action)
    if wrong is not None:
        monkeypatch.setattr(Host, "_obstacles", lambda *_: wrong)

    for serve in (partial(engines[0].serve, ()), partial(engines[1]._serving._generated, ())):
        if wrong is None:
            assert () == serve()
        else:
            with pytest.raises(EngineFailed, match="it stalls for"):
                serve()


def waits_for_slots(host: Host, stats: Stats) -> tuple[Refusal, ...] | None:
    """Serve, and stall if a slot is in use afterwards."""
    SERVE(host, stats)
    return (Refusal(Reason.QUEUE_EMPTY, 0, "a token"),) if host.settle().active else None


def test_the_same_history_meets_the_same_trouble() -> None:
    """What comes, and when, is that of state and requests: a finding comes again."""
    numbers = []
    for _ in range(2):
        ours = Ours(*GIVEN, observed=True)
        numbers.append([ours._serving._number(REQUESTS[2:])])
        for action in MIXED[:-1]:
            ours.apply(action)
            ours.observe()
            numbers[-1].append(ours._serving._number(REQUESTS[2:]))

    assert numbers[0] == numbers[1]
    assert len(MIXED) == len(set(numbers[0]))


def test_a_stall_without_anything_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that somebody has reserved is nothing to wait for."""
    engines = [Ours(*GIVEN, observed=True) for _ in range(2)]
    for ours in engines:
        ours.apply(act.Reserve(0))

    assert 1 == len(engines[0].serve(REQUESTS[:1]))
    monkeypatch.setattr(Host, "_serve", waits_for_slots)
    with pytest.raises(EngineFailed, match="it stalls with 0 requests waiting and 0 tokens"):
        engines[1].serve(REQUESTS[:1])


def serves_its_own(given: Host, stats: Stats) -> tuple[Refusal, ...] | None:
    """Serve only while a request of the host waits or has a slot."""
    while given.state.waiting or given.state.admitted:
        SERVE(given, stats)
        stats = given.settle()
    return None


def test_what_runs_without_the_host_is_served_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that ends before sequences that it has not begun leaves tokens in the queue."""
    engines = [Ours(*GIVEN, observed=True) for _ in range(2)]
    for ours in engines:
        ours.apply(act.Prefill(REQUESTS[1:2]))

    assert 2 == len(engines[0].serve(()))
    monkeypatch.setattr(Host, "_serve", serves_its_own)
    with pytest.raises(EngineFailed, match="it is done with 0 requests waiting and 2 tokens"):
        engines[1].serve(())


def holds_in_any_thread(work: Callable[[], object]) -> object:
    """Hold interrupts wherever it is called."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return work()
    finally:
        signal.signal(signal.SIGINT, previous)


def serves_less_elsewhere(given: Host, requests: Sequence[Request]) -> Any:
    """Forget the last output in a thread that is not the main one."""
    outputs = GENERATE(given, requests)
    if not is_main_thread():
        outputs.popitem()
    return outputs


GENERATE: Final = Host.generate


@pytest.mark.parametrize(
    ("place", "name", "planted", "told"),
    [
        (Host, "generate", GENERATE, None),
        (Host, "generate", serves_less_elsewhere, "in another thread"),
        (together, "hold_interrupts", holds_in_any_thread, "signal only works in main thread"),
    ],
)
def test_another_thread_serves_the_same(
    place: object, name: str, planted: object, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our host serves the same there; one that does not, or cannot, is told."""
    ours = Ours(*GIVEN, observed=True)
    monkeypatch.setattr(Serving, "_number", lambda *_: 0)
    ours.serve(REQUESTS)
    monkeypatch.setattr(place, name, planted)

    if told is None:
        ours.serve(REQUESTS)
        return
    with pytest.raises((EngineFailed, ValueError), match=told):
        ours.serve(REQUESTS)


def test_a_refusal_that_changes_nothing_is_judged_by_the_last_view() -> None:
    """A state that was judged is not judged again, so that refusals cost little."""
    lockstep = Lockstep(called(lambda: Ours(*GIVEN, observed=True)))
    before = lockstep.seen

    assert {Reason.SLOT_UNUSED} == lockstep.do(act.Free(0))
    assert before is lockstep.seen
    lockstep.do(act.Reserve(0))
    assert before is not lockstep.seen


def takes_the_arrays(given: Engine, state: State) -> None:
    """Inject without a copy."""
    given.packed = pack(state)


def test_an_injected_state_stays_with_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes the arrays, and not copies, donates them to its next call."""
    ours = Ours(*GIVEN, observed=True)
    ours.apply(act.Submit(REQUESTS[0]))
    monkeypatch.setattr(Engine, "inject", takes_the_arrays)

    with pytest.raises(EngineFailed, match="deletes what was injected"):
        ours.serve(())


def test_a_stall_for_a_name_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for the output of another one of its name, which the stall itself gives."""
    ours = Ours(*GIVEN, observed=True)
    for action in (act.Submit(REQUESTS[0]), act.Prefill(REQUESTS[:1])):
        ours.apply(action)
    monkeypatch.setattr(Host, "_obstacles", lambda *_: ())

    with pytest.raises(EngineFailed, match="should be for CHOICE_TAKEN"):
        ours.serve(())


def gives_up(given: Host, stats: Stats) -> tuple[Refusal, ...]:
    """Stall at once."""
    return host._admit_refusals(given.state, given._engine.setup, stats)


@pytest.mark.parametrize("waiting", [True, False])
def test_a_stall_that_a_second_call_ends_is_seen(
    monkeypatch: pytest.MonkeyPatch, *, waiting: bool
) -> None:
    """Nothing was waited for: a request fits, or a round can be done."""
    ours = Ours(*GIVEN, observed=True)
    ours.apply(act.Submit(REQUESTS[3]) if waiting else act.Prefill(REQUESTS[3:]))
    monkeypatch.setattr(Host, "_serve", gives_up)

    with pytest.raises(EngineFailed, match="and goes on if it is asked once more"):
        ours.serve(())


@pytest.mark.parametrize("mode", ResetMode)
@pytest.mark.parametrize("waiting", range(3))
def test_a_reset_is_that_of_a_new_engine(waiting: int, mode: ResetMode) -> None:
    """Also after a call that has lost the state, which comes where an odd number waits."""
    ours, right = both()
    begun: tuple[Action, ...] = (act.Submit(REQUESTS[1]), act.Admit())
    begun += tuple(map(act.Submit, REQUESTS[2:][:waiting]))
    for action in (*begun, act.Reset(mode), *MIXED[:4]):
        right.apply(action)
        ours.apply(action)

        require_alike(ours, right)


def gives_pages_back(setup: Setup, _weights: object, state: State) -> Answer:
    """A reset that releases what rows name, in the place of counting anew."""
    slots = jnp.arange(setup.geometry.slots)
    freed = pages.release(state.pages, slots, setup.geometry)
    return blank_metadata(setup, ())._replace(pages=freed), done(), nothing()


def test_a_reset_is_from_any_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that relies on the counts before it is seen, where an odd number of tokens is queued."""
    ours, right = both()
    monkeypatch.setattr(entries, "reset_logical", gives_pages_back)
    forget_compiled()
    try:
        for action in (*QUEUED, act.Reset()):
            right.apply(action)
            ours.apply(action)
        with pytest.raises(AssertionError):
            require_alike(ours, right)
    finally:
        monkeypatch.undo()
        forget_compiled()


def keeps_broken(host: Host, mode: ResetMode) -> None:
    """Reset the engine, and forget no failure."""
    host._engine.reset(mode)
    host._state = HostState()


def forgets_what_waits(host: Host) -> object:
    """Take outputs, and drop the requests that wait if that fails."""
    try:
        return TAKE(host)
    except Exception:
        host._state = HostState()
        raise


TAKE: Final = Host._take


def unless_it_fails(work: Callable[[], object]) -> object:
    """Hold interrupts, and drop them where the work fails."""
    held = list[int]()
    previous: Any = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        done = work()
    finally:
        signal.signal(signal.SIGINT, previous)
    if held:
        previous(held[0], sys._getframe())
    return done


def made_anew(engine: Engine) -> Packed:
    """The state, or a new one where it is lost."""
    return engine._packed or Engine(engine.setup).packed


@pytest.mark.parametrize(
    ("place", "name", "planted", "told"),
    [
        (Host, "_reset", keeps_broken, "after a reset"),
        (
            Engine,
            "packed",
            property(made_anew, vars(Engine)["packed"].fset),
            "goes on without its state",
        ),
        (Host, "_take", forgets_what_waits, "wait after a call that failed"),
        (engine, "hold_interrupts", unless_it_fails, "Ctrl-C in a call that fails is lost"),
    ],
)
def test_a_failure_that_is_not_named_or_not_mended_is_seen(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, planted: object, told: str
) -> None:
    """A host that no reset mends, an engine that goes on, and what is forgotten meanwhile."""
    ours = Ours(*GIVEN, observed=True)
    monkeypatch.setattr(place, name, planted)
    monkeypatch.setattr(Together, "check", Together.check if place is Host else lambda _: None)

    ours.apply(act.Submit(REQUESTS[1]))
    with pytest.raises(EngineFailed, match=told):
        ours.apply(act.Reset(ResetMode.LOGICAL))


def test_what_host_and_driver_return_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests that are admitted, the keys of outputs, and the padding of a plan."""
    ours = Ours(*GIVEN, observed=True)
    right = Host.admit, Host.generate, Engine._plan
    for request in REQUESTS[::2]:
        ours.apply(act.Submit(request))

    monkeypatch.setattr(Host, "admit", lambda host: right[0](host)[:1])
    with pytest.raises(EngineFailed, match="it admits"):
        ours.apply(act.Admit())
    monkeypatch.setattr(Host, "generate", lambda *given: dict(enumerate(right[1](*given).values())))
    with pytest.raises(EngineFailed, match="has the key 0"):
        ours.serve(())
    slots = [ours.engine.reserve() for _ in range(2)]
    for number, name in enumerate(("slot_ids", "destinations")):
        wrong = partial(replaced, right[2], name)
        monkeypatch.setattr(Engine, "_plan", lambda *given, wrong=wrong: wrong(*given))
        with pytest.raises(EngineFailed, match="the padding of a plan names"):
            ours.apply(act.Allocate(((slots[number], 0),)))


def test_what_is_given_and_what_was_returned_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that changes its caller's list, and one that changes the plan of an earlier one."""
    ours = Ours(*GIVEN, observed=True)
    slots = [ours.engine.reserve() for _ in range(2)]
    right, held = Engine._plan, list[Any]()

    def reused(given: Engine, result: Any) -> Any:
        held[:] = held or [right(given, result)]
        held[0].kv_lens[:] = right(given, result).kv_lens
        return held[0]

    monkeypatch.setattr(Engine, "_plan", reused)
    ours.apply(act.Allocate(((slots[0], 0),)))
    with pytest.raises(EngineFailed, match="the plan of an earlier call changes"):
        ours.apply(act.Allocate(((slots[0], 1), (slots[1], 0))))
    monkeypatch.setattr(Host, "generate", lambda _, requests: requests.clear() or {})
    with pytest.raises(EngineFailed, match="a call changes the list"):
        ours.serve(REQUESTS)


def replaced(right: Callable[..., Any], name: str, engine: Engine, result: object) -> Any:
    """A plan whose padding has the number 0 in a field."""
    plan = right(engine, result)
    field = getattr(plan, name)
    return plan._replace(**{name: np.where(field == INVALID, 0, field)})


def in_all_troubles(monkeypatch: pytest.MonkeyPatch, name: str, planted: object) -> set[str]:
    """What is wrong with our engine in trouble, at each of its calls, with another function."""
    place = next((one for one in (host, together, Together) if hasattr(one, name)), Host)
    ours = Ours(*GIVEN, observed=True)
    for request in REQUESTS[:1]:
        ours.apply(act.Submit(request))
    before = ours.engine.extract(), ours._host.state
    right = entries_of(ours._serving._generated(REQUESTS[1:]))
    monkeypatch.setattr(place, name, planted)
    calls, told = ours._engine.calls, set()
    for kind, at in product(range(12), range(calls)):
        ours._serving.put_back(*before)
        try:
            ours._serving._in_trouble(REQUESTS[1:], right, kind, at)
        except EngineFailed as failed:
            told.add(str(failed))
    return told


def leaves_the_default(work: Callable[[], object]) -> object:
    """Hold interrupts, and then have the handler of Python."""
    try:
        return hold_interrupts(work)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def raises_by_itself(work: Callable[[], object]) -> object:
    """Raise after the work what Python would, whatever handler the user has."""
    seen = list[int]()
    previous = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        return work()
    finally:
        signal.signal(signal.SIGINT, previous)
        if seen:
            raise KeyboardInterrupt


def drops_the_interrupt(work: Callable[[], object]) -> object:
    """Ignore interrupts during the work."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return work()
    finally:
        signal.signal(signal.SIGINT, previous)


def forgets_what_is_kept(
    state: HostState, request: Request, setup: Setup, stats: Stats
) -> HostState:
    """Submit as if no output was kept."""
    held = submit(evolve(state, finished=()), request, setup, stats)
    return evolve(held, finished=state.finished)


def reset_but_for_outputs(given: Host, mode: ResetMode) -> None:
    """Reset, and keep what had finished."""
    given._engine.reset(mode)
    given._state = evolve(given._state, waiting=(), admitted=())
    given._together.broken = False


def collect_at_once(given: Host) -> tuple[Output, ...]:
    """Collect without holding interrupts."""
    given._together.check()
    return given._together._unless_broken(given._take)


def unless_an_exception(given: Together, work: Callable[[], object]) -> object:
    """Run work; what is no `Exception` leaves the host as if nothing had happened."""
    try:
        return work()
    except Exception:
        given.broken = True
        raise


def take_without_what_is_kept(given: Host) -> None:
    """Take from the device, and drop what had been taken before."""
    given._state = evolve(given._state, finished=given._engine.take_outputs())


def take_before_what_is_kept(given: Host) -> None:
    """Take from the device, and put it before what had been taken before."""
    taken = given._engine.take_outputs()
    given._state = evolve(given._state, finished=(*taken, *given._state.finished))


def decode_anyhow(given: Host) -> tuple[int, Reason | None]:
    """Decode, whatever has happened."""
    return given._engine.generate()


def installs_its_own_at_last(work: Callable[[], object]) -> object:
    """Hold interrupts, and afterwards install the handler of before, whatever it has installed."""
    previous = signal.getsignal(signal.SIGINT)
    try:
        return hold_interrupts(work)
    finally:
        signal.signal(signal.SIGINT, previous)


def holding(
    work: Callable[[], object], *, holds: Callable[[object], bool], given: Any = None
) -> object:
    """Hold interrupts for such handlers; they are called with what is given, or the signal."""
    previous, held = signal.getsignal(signal.SIGINT), list[int]()
    if not holds(previous):
        return work()
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        return work()
    finally:
        signal.signal(signal.SIGINT, previous)
        if held:
            previous(given or held[0], sys._getframe())  # type: ignore[misc, operator]


counts_the_signals = partial(holding, holds=callable, given=1)
holds_for_functions_alone = partial(holding, holds=inspect.isroutine)
holds_whatever_there_is = partial(holding, holds=bool)


@pytest.mark.parametrize(
    ("name", "planted", "told"),
    deep_after(
        4,
        [
            ("submit", submit, ""),
            ("submit", forgets_what_is_kept, "which was not taken, is free"),
            ("hold_interrupts", leaves_the_default, "the handler of Ctrl-C is"),
            ("hold_interrupts", drops_the_interrupt, "Ctrl-C in call 1 is lost"),
            (
                "hold_interrupts",
                raises_by_itself,
                "Ctrl-C raises KeyboardInterrupt, and its handler",
            ),
            ("_reset", reset_but_for_outputs, "of the host and a reset, HostState"),
            ("_collect", collect_at_once, "of the host, its state is lost"),
            (
                "_unless_broken",
                unless_an_exception,
                "an alarm in call 1 of the host, what is served is",
            ),
            ("check", lambda _: None, "after an alarm in call 1 of the host, what is served is"),
            ("_take", take_without_what_is_kept, "of the host, what is served is"),
            ("_take", take_before_what_is_kept, "and had begun with"),
            ("generate_rounds", decode_anyhow, "generate_rounds goes on without its state"),
            ("hold_interrupts", installs_its_own_at_last, "the handler of Ctrl-C is"),
            ("hold_interrupts", counts_the_signals, "the handler of Ctrl-C is called with 1 and"),
            ("hold_interrupts", holds_for_functions_alone, "of the host, its state is lost"),
        ],
    ),
)
def test_what_trouble_leaves_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch, name: str, planted: object, told: str
) -> None:
    """Nothing is lost, or the host says so; ids stay taken, and the handler of the user stays."""
    usual = signal.default_int_handler
    before = signal.signal(signal.SIGINT, usual)  # in the background, it may be ignored
    try:
        found = in_all_troubles(monkeypatch, name, planted)
        after = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert any(told in one for one in found) if told else not found
    assert after == usual


def public(cls: type) -> set[str]:
    """The public methods of a class."""
    return {
        name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")
    }


def test_every_call_is_asked_whether_it_goes_on_without_its_state() -> None:
    """All public methods but those that mend it, and two that read no state."""
    ours = Ours(*GIVEN, observed=True)

    assert public(Host) - {"reset"} == calls_of_host(ours._host).keys()
    others = {"reset", "inject", "compilations", "finish"}
    assert public(Engine) - others == calls_of_engine(ours.engine).keys()


def resets_in_two(given: Host, mode: ResetMode = ResetMode.LOGICAL) -> None:
    """Reset, and do not hold interrupts."""
    given._reset(mode)


def resets_and_trusts(given: Host, mode: ResetMode = ResetMode.LOGICAL) -> None:
    """Reset, and count as whole whatever comes."""
    hold_interrupts(partial(given._reset, mode))


def unless_no_exception(given: Together, work: Callable[[], object]) -> object:
    """Run work; an `Exception` leaves the host as if nothing had happened."""
    try:
        return work()
    except BaseException as error:
        given.broken |= not isinstance(error, Exception)
        raise


def loses_at_any_error(given: Engine, run: Any, rest: tuple[Any, ...]) -> Any:
    """Call the device, and give the state up wherever it fails."""
    try:
        return BIND(given, run, rest)
    except Exception:
        given._packed = None
        raise


BIND = Engine._bind


def takes_in_two(given: Host) -> tuple[Output, ...]:
    """Take outputs, and do not hold interrupts."""
    given._take()
    taken, given._state = given.state.finished, evolve(given.state, finished=())
    return taken


@pytest.mark.parametrize(
    ("place", "name", "planted", "told"),
    deep_after(
        3,
        [
            (Host, "reset", Host.reset, None),
            (Host, "reset", resets_in_two, "0 of 1, Reset(mode=<ResetMode.PHYSICAL: "),
            (Host, "take_outputs", takes_in_two, "Ctrl-C in call 0 of 1, TakeOutputs() is neither"),
            (
                engine,
                "hold_interrupts",
                drops_the_interrupt,
                "Ctrl-C in call 0 of Reserve(slot=3) is",
            ),
            (
                engine,
                "hold_interrupts",
                lambda work: work(),
                "0 of 1, Reserve(slot=3): the engine has",
            ),
            (
                engine,
                "hold_interrupts",
                holds_for_functions_alone,
                "0 of 1, Reserve(slot=3): the engine has",
            ),
            (engine, "hold_interrupts", holds_whatever_there_is, "not callable"),
            (Host, "reset", resets_and_trusts, "after an alarm in call 0 of 1, Reset(mode="),
            (
                Together,
                "_unless_broken",
                unless_no_exception,
                "is an error in call 1 of 2, Admit() is",
            ),
            (
                Engine,
                "_bind",
                loses_at_any_error,
                "before the device has the state in call 0 of 1, R",
            ),
        ],
    ),
)
def test_every_action_is_done_whole_or_not_at_all(
    place: object, name: str, planted: object, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trouble in any call leaves an action done or not, or the host says that its state is lost."""
    monkeypatch.setattr(place, name, planted)
    usual = signal.default_int_handler
    previous, found = signal.signal(signal.SIGINT, usual), set()
    try:
        for number in range(3 * len(Trouble)):
            ours = Ours(*GIVEN, observed=True)
            for action in MIXED:
                try:
                    ours._do_in_trouble_too(action, number)
                except (EngineFailed, TypeError) as failed:
                    found.add(str(failed))
        after = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)

    assert any(told in one for one in found) if told else not found
    assert usual == after


def test_what_is_settled_before_an_action_is_no_part_of_it() -> None:
    """An error in a prefill comes after the host has dropped what a request had reserved."""
    for number in range(2 * len(Trouble)):
        ours = Ours(*GIVEN, observed=True)
        for action in (act.Submit(REQUESTS[1]), act.Admit(), act.Generate()):
            ours.apply(action)

        ours._do_in_trouble_too(act.Prefill(REQUESTS[3:]), number)


def test_what_a_refusal_has_seen_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two numbers that are told in the place of each other are seen."""
    ours = Ours(*GIVEN, observed=True)
    monkeypatch.setattr(
        engine, "Refusal", lambda reason, seen, allowed: Refusal(reason, allowed, seen)
    )
    ours.apply(act.Reserve(0))

    with pytest.raises(EngineFailed, match=r"TOO_LONG: saw 8, allowed 10: .*; it is allowed"):
        ours.apply(act.Assign(0, (1,) * 9, Params(max_new=1), request=1))
