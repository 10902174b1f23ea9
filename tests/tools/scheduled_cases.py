"""Random requests under the scheduler of the specification, and what a turn of it does wrong."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from random import Random

from attrs import evolve, frozen

from spec import ladder, pool, scheduler
from spec.machines import naive
from spec.machines.actions import Action, Allocate, Dispatch, MixedRound, Preempt, TakeOutputs
from spec.machines.chunks import batch_of
from spec.machines.flights import reach
from spec.machines.pages import used
from spec.machines.preemption import slots_of_request
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import (
    LAG,
    STANDARD,
    Capacity,
    CleanupMode,
    Geometry,
    Params,
    Refused,
    Request,
    default_limits,
)

MACHINE = ladder.machine("preemption", "prefix")
WITHOUT_INDEX = ladder.machine("preemption")
FLYING = ladder.machine("preemption", "prefix", "flights")
ANY = -1
"""In place of a lag: each turn has another one, or none."""


@frozen
class Case:
    """Requests that arrive in a new engine. seed: of the rounds in which they arrive."""

    new: State
    requests: tuple[Request, ...]
    machine: Machine
    seed: int


def case(seed: int) -> Case:
    """Few pages, few slots, a small budget, equal texts, and several choices."""
    draws = Random(seed)
    size, width, slots = draws.randint(1, 3), draws.randint(2, 6), draws.randint(1, 4)
    pages = draws.randint(width, width + 3)
    geometry = Geometry(pages=pages, page_size=size, slots=slots, pages_per_seq=width)
    limits = evolve(
        default_limits(geometry),
        round_tokens=draws.randint(1, 6),
        queue=slots,
        outputs=draws.randint(1, 2) * slots,
    )
    machine, cleanup = draws.choice((MACHINE, MACHINE, WITHOUT_INDEX)), draws.choice([*CleanupMode])
    new = machine.initial(geometry, limits, cleanup)
    asked = tuple(request(draws, number, geometry) for number in range(draws.randint(2, 7)))
    return Case(
        new=new,
        requests=_arriving(machine, new, asked),
        machine=machine,
        seed=seed,
    )


def flying(seed: int) -> Case:
    """The same in a machine with steps in flight; some have a window, and a ring."""
    still, draws = case(seed), Random(f"flying {seed}")
    names = {*still.machine.names, "flights"}
    geometry, capacity = still.new.geometry, STANDARD
    if draws.random() < 0.4:
        names.add("window")
        geometry = evolve(geometry, window=draws.randint(1, 4))
        least = -(-((geometry.window or 1) - 1) // geometry.page_size) + 1
        if least < geometry.pages_per_seq and draws.random() < 0.5:
            capacity = Capacity(ring=draws.randint(least, geometry.pages_per_seq - 1))
    machine = ladder.machine(*sorted(names))
    new = machine.initial(geometry, still.new.limits, still.new.cleanup, capacity)
    return Case(new, _arriving(machine, new, still.requests), machine, seed)


def _arriving(machine: Machine, new: State, asked: tuple[Request, ...]) -> tuple[Request, ...]:
    pages = new.geometry.pages
    return tuple(one for one in asked if scheduler.pages_needed(machine, new, one) <= pages)


def request(draws: Random, number: int, geometry: Geometry) -> Request:
    """A request that fits a row. Its tokens are often equal; what it would draw may stop it."""
    new = draws.randint(1, geometry.max_len - 1)
    length = draws.randint(1, geometry.max_len - new)
    most = draws.randint(1, 2)
    params = Params(max_new=new, temperature=float(draws.randint(0, 1)), seed=draws.randint(0, 3))
    prompt = tuple(draws.randint(1, most) for _ in range(length))
    if draws.random() < 0.3:
        text, _ = naive.generate(prompt, params, draws.randint(0, 1))
        params = evolve(params, stops=((draws.choice(text),),))
    return Request(
        id=number,
        prompt=prompt,
        params=params,
        n_generations=draws.randint(1, min(3, geometry.slots)),
    )


def idle(machine: Machine, state: State, jobs: scheduler.Jobs, action: MixedRound) -> Iterator[str]:
    """The slots that could have a token more in a round, and have none."""
    batch = batch_of(state, action)
    drawn = sum(position + 1 == len(used(state, slot).tokens) for slot, position in batch)
    full = len(state.outputs) + drawn == state.limits.outputs
    if len(batch) == state.limits.round_tokens or full:
        return
    there = {slot for slot, _ in batch}
    for request in scheduler.running(state, jobs):
        for slot in slots_of_request(state, request):
            cells = used(state, slot).allocated
            more = (*batch, (slot, cells))
            lacks = machine.pages_wanted(state, Allocate(more)) > state.counts.count(0)
            if slot not in there and not lacks and not scheduler._waits(machine, state, slot):
                yield f"KNOB: slot {slot} could write cell {cells}, and is not in {action}"


def idle_in_step(
    machine: Machine, state: State, jobs: scheduler.Jobs, action: Dispatch
) -> Iterator[str]:
    """The slots of which a step could have a token more, by the rules of the rung.

    Newer requests leave a place in the outputs for the oldest one.
    """
    chunks = dict(action.chunks)
    drawing = {
        slot
        for slot, count in action.chunks
        if used(state, slot).allocated + count == reach(state, slot)
    }
    for request in scheduler.running(state, jobs):
        for slot in slots_of_request(state, request):
            more = Dispatch(tuple({**chunks, slot: chunks.get(slot, 0) + 1}.items()))
            places = len(state.promised | drawing | {slot}) + 1
            full = len(state.outputs) + places > state.limits.outputs
            waits = scheduler._waits(machine, state, slot)
            if not full and not waits and not machine.refusals(state, more):
                yield f"KNOB: a step could have a token more of slot {slot} than {action}"


class Served:
    """What a case did. wrong: what a request could tell, or what did not go on.

    lag: of each turn; ANY for another one in each. outputs: by request and choice. stalled: in how
    many turns in a row the oldest request went no further, at most. in_flight: steps, at most.
    """

    def __init__(self, case: Case, *, lag: int | None = None) -> None:
        self.kinds, self.wrong = Counter[type](), list[str]()
        self.overtaken = Counter[int]()
        self.outputs = dict[tuple[int, int], object]()
        self.stalled = self.in_flight = self.drained = 0
        self._machine, self._jobs, self._lag = case.machine, (), lag
        self._arrived = [one.id for one in case.requests]
        self._state, self._case = case.new, case
        self._stalls, self._free = 0, None
        self._draws, coming = Random(case.seed), list(case.requests)
        self._takes_early = lag is None or self._draws.random() < 0.5
        while (coming or self._jobs) and not self.wrong:
            while coming and (not self._jobs or self._draws.random() < 0.4):
                self._jobs = scheduler.arrive(self._machine, self._state, self._jobs, coming.pop(0))
            self._turn()
        self._end()

    _jobs: scheduler.Jobs
    _free: int | None

    def _end(self) -> None:
        if self.wrong:
            return
        if self._lag is not None:
            self._go(lag=0)
            self._take_outputs()
        for one in self._case.requests:
            for choice in range(one.n_generations):
                window = self._state.geometry.window
                alone = naive.generate(one.prompt, one.params, choice, window=window)
                if self.outputs.get((one.id, choice)) != alone:
                    self.wrong.append(f"ALONE: choice {choice} of request {one.id}")
        if any(self._state.in_use) or self._state.flights:
            self.wrong.append("CONS: a page is left")

    def _do(self, action: Action) -> State:
        if isinstance(action, MixedRound):
            self.wrong += idle(self._machine, self._state, self._jobs, action)
        if isinstance(action, Dispatch):
            self.wrong += idle_in_step(self._machine, self._state, self._jobs, action)
        self._judge_preemptions(action)
        self.kinds[type(action)] += 1
        self._state = self._machine.step(self._state, action)
        self.in_flight = max(self.in_flight, len(self._state.flights))
        return self._state

    def _judge_preemptions(self, action: Action | None) -> None:
        """Preemptions in a row together free a page at once."""
        free = pool.free_count(self._state.in_use)
        if isinstance(action, Preempt):
            self._free = free if self._free is None else self._free
        elif self._free is not None:
            if free <= self._free:
                self.wrong.append("PROG: a preemption gains no page now")
            self._free = None

    def _turn(self) -> None:
        """Take a turn, and judge it. The outputs are taken after it, or when they are full."""
        state, lag = self._state, self._lag
        if lag == ANY:
            lag = self._draws.choice((None, *range(LAG + 1)))
        before = scheduler.ranks(state, self._jobs, self._arrived)
        room = len(state.outputs) < state.limits.outputs
        if not self._go(lag=lag):
            return
        self._judge_preemptions(None)
        after = scheduler.ranks(self._state, self._jobs, self._arrived)
        self._judge_rank(before, after, room=room)
        if len(self._state.flights) > (lag or 0):
            self.wrong.append(f"LAG: {len(self._state.flights)} steps are in flight after a turn")
        begun = scheduler.running(self._state, self._jobs)
        if begun != (*islice(after, len(begun)),):
            self.wrong.append(f"{begun} run before older ones")
        late = {*scheduler.overtaken(before, after)} - scheduler.in_flight(self._state)
        assert self._lag is not None or next(iter(before)) not in late
        self.overtaken.update(late)
        if self._takes_early or len(self._state.outputs) == self._state.limits.outputs:
            self._take_outputs()

    def _go(self, *, lag: int | None) -> bool:
        """Whether nothing that the scheduler does in a turn is refused."""
        try:
            self._jobs = scheduler.turn(self._machine, self._state, self._jobs, self._do, lag=lag)
        except Refused as error:
            self.wrong.append(f"REFUSED: {error}")
        return not self.wrong

    def _judge_rank(self, before: dict[int, int], after: dict[int, int], *, room: bool) -> None:
        oldest = next(iter(before))
        stalls = after.get(oldest, 0) >= before[oldest]
        assert stalls == scheduler.oldest_stalls(before, after)
        if room or not stalls:
            self._stalls = scheduler.turns_stalled(self._stalls, before, after)
        self.stalled = max(self.stalled, self._stalls)
        if self._stalls > (LAG if self._lag == ANY else self._lag or 0):
            self.wrong.append(f"PROG: the rank of request {oldest} is {before[oldest]} again")

    def _take_outputs(self) -> None:
        for output in self._state.outputs:
            self.outputs[output.request, output.choice] = output.tokens, output.reason
        if self._state.outputs:
            self._do(TakeOutputs())
