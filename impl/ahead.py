"""Requests served without waiting: a step is enqueued before the outputs of earlier ones are read.

A call of the engine returns before the device has done it. Its report stays on the device until it
is needed: the host reads that of a step just before it delivers the step, and `lag` further steps
are enqueued by then. So it learns of a stop that many steps late. A step that is dispatched
meanwhile for a sequence that has ended does nothing for it from the delivery on, and only holds
its slot and its pages.

What is planned needs no report: prompts and limits are known here, and every sequence is counted
with the pages of its worst case until no step holds it. So no call is refused, unless the engine
is also driven by someone else. Source: docs/sources.md, "Steps in flight" and "Worst-case
admission".
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from attrs import evolve, frozen
from jax import Array

from impl import arguments
from impl.engine import Engine, Key, Output, outputs_of
from impl.host import Stalled, size_refusals
from impl.setup import Setup
from impl.together import Together
from spec.vocabulary import (
    LAG,
    CleanupMode,
    InvalidInput,
    Reason,
    Refusal,
    Refused,
    Request,
    ResetMode,
    refused,
)
from spec.vocabulary.rules import a, between

Chunks = tuple[tuple[int, int], ...]
"""(slot, number of tokens) of each sequence in a step."""
Ints = np.ndarray[Any, np.dtype[np.int32]]

STEPS: Final = between(0, LAG)
"""The rule for a lag."""


@frozen
class Held:
    """A request in a slot. cells: how many its steps have taken.

    ended: its last token is known here. gone: the device has released it, but steps in flight may
    hold the slot and the pages.
    """

    request: Request
    slot: int
    cells: int = 0
    ended: bool = False
    gone: bool = False

    @property
    def left(self) -> int:
        """How many tokens the next step may read: the rest of the prompt, or one to be drawn."""
        prompt = len(self.request.prompt)
        if self.ended or self.cells >= prompt + self.request.params.max_new - 1:
            return 0
        return max(1, prompt - self.cells)


@frozen
class AheadState:
    """waiting: requests without a slot, oldest first. held: those with one, oldest first.

    flights: the chunks of the steps that are enqueued and not delivered, oldest first. owed: ids of
    requests that have ended, and whose output is not read yet. finished: outputs that are read and
    not returned yet.
    """

    waiting: tuple[Request, ...] = ()
    held: tuple[Held, ...] = ()
    flights: tuple[Chunks, ...] = ()
    owed: tuple[int, ...] = ()
    finished: tuple[Output, ...] = ()


@frozen(eq=False)
class Call:
    """A call whose report is not read yet. did: what its refusal takes back; None for nothing."""

    name: str
    report: Array
    did: Held | Chunks | None = None


def submit(state: AheadState, request: Request, setup: Setup) -> AheadState:
    """Add a request to the waiting ones. Raises Refused if it can never run or its id is taken."""
    found = tuple(_submit_refusals(state, request, setup))
    if found:
        raise refused(found)
    return evolve(state, waiting=(*state.waiting, request))


def room_refusals(state: AheadState, setup: Setup) -> Iterator[Refusal]:
    """Why the oldest waiting request cannot begin now."""
    geometry = setup.geometry
    if len(state.held) == geometry.slots:
        yield Refusal(Reason.NO_FREE_SLOT, 1, "at most 0 choices")
    reserved = sum(one.request.pages_needed(geometry) for one in state.held)
    wanted = state.waiting[0].pages_needed(geometry)
    if reserved + wanted > geometry.pages:
        allowed = f"at most {geometry.pages - reserved} unreserved pages"
        yield Refusal(Reason.OUT_OF_PAGES, wanted, allowed)


def begun(state: AheadState, setup: Setup) -> AheadState:
    """The state in which the oldest waiting request is in the lowest slot that nothing holds."""
    first, *waiting = state.waiting
    taken = {one.slot for one in state.held}
    slot = next(slot for slot in range(setup.geometry.slots) if slot not in taken)
    return evolve(state, waiting=tuple(waiting), held=(*state.held, Held(first, slot)))


def planned(state: AheadState, setup: Setup) -> Chunks:
    """The next step: a token of each sequence that decodes, then prompts, while there is room."""
    ready = [one for one in state.held if one.left]
    ready.sort(key=lambda one: one.cells < len(one.request.prompt))  # stable: the oldest first
    room, chunks = setup.limits.round_tokens, list[tuple[int, int]]()
    for one in ready:
        count = min(one.left, room)
        if count:
            chunks.append((one.slot, count))
            room -= count
    return tuple(chunks)


def launched(state: AheadState, chunks: Chunks) -> AheadState:
    """The state with one more step in flight."""
    return evolve(_with_cells(state, chunks, 1), flights=(*state.flights, chunks))


def delivered(state: AheadState, reasons: Sequence[int], cleanup: CleanupMode) -> AheadState:
    """The state after the oldest step is delivered.

    reasons: for each slot, why the token that the step drew ends its sequence; 0 if it does not.
    """
    oldest, *flights = state.flights
    slots = {slot for slot, _ in oldest if reasons[slot]}
    ends = [one for one in state.held if one.slot in slots and not one.ended]
    held = [evolve(one, ended=one.ended or one in ends) for one in state.held]
    all_ended = all(one.ended for one in held)
    released = cleanup is CleanupMode.INCREMENTAL or (cleanup is CleanupMode.END and all_ended)
    held = [evolve(one, gone=one.gone or (one.ended and released)) for one in held]
    owed = (*state.owed, *(one.request.id for one in ends))
    return _let_go(evolve(state, held=tuple(held), flights=tuple(flights), owed=owed))


def withdrawn(state: AheadState, did: Held | Chunks | None) -> AheadState:
    """The state without the newest call that did this."""
    match did:
        case None:
            return state
        case Held():
            return evolve(state, waiting=(did.request, *state.waiting), held=tuple(state.held[:-1]))
        case _:
            return _let_go(evolve(_with_cells(state, did, -1), flights=state.flights[:-1]))


def _let_go(state: AheadState) -> AheadState:
    """The state without what is gone, as far as no step in flight names its slot."""
    named = {slot for chunks in state.flights for slot, _ in chunks}
    held = tuple(one for one in state.held if not one.gone or one.slot in named)
    return evolve(state, held=held)


class Ahead:
    """Serves requests with an engine of its own, and dispatches steps before it knows earlier ones.

    lag: how many steps are in flight when the next one is dispatched, 0 to 2. With 0 the host waits
    for each step. Outputs do not depend on it. No other caller drives the engine meanwhile. A begin
    or launch that the device refuses raises Refused with its reason, when its report is read: it
    has changed nothing, nor has any begin or launch behind it, and their requests go back to where
    they were. Deliveries behind it are of older steps, and done.

    Interrupts and lost states are as for `impl.host.Host`: after an interrupt `generate([])` goes
    on, and after any other error every method raises StateLost, until `reset`.
    """

    _state: AheadState
    _calls: deque[Call]
    _last: Array

    def __init__(self, engine: Engine, *, lag: int = LAG) -> None:
        """Raises Refused unless the engine has no sequence, step in flight or output."""
        a(Engine).require("engine", engine)
        STEPS.require("lag", lag)
        stats = engine.stats()
        busy = stats.active + stats.in_flight + stats.outputs
        if busy:
            raise refused([Refusal(Reason.SLOT_USED, busy, "an engine without requests")])
        self.lag = lag
        self._engine, self._together = engine, Together()
        self._forget()

    @property
    def state(self) -> AheadState:
        """What the host knows: the state of the device is further on, by the steps in flight."""
        return self._state

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Refused if it can never run or its id is taken."""
        self._submit_all([request])

    def step(self) -> bool:
        """Begin waiting requests that fit, and dispatch one step; False if nothing is left to do.

        Waits only for steps that are `lag` behind, or if no step can be planned without them.
        """
        self._check()
        while True:
            while len(self._state.flights) > self.lag:
                self._together.run(self._deliver)
            while self._state.waiting and not any(room_refusals(self._state, self._engine.setup)):
                self._together.run(self._begin)
            chunks = planned(self._state, self._engine.setup)
            if chunks:
                self._together.run(partial(self._launch, chunks))
                return True
            if not self._state.flights:
                self._together.run(self._read_all)
                return False
            self._together.run(self._deliver)

    def take_outputs(self) -> tuple[Output, ...]:
        """The outputs that are read and not returned yet, in order of finishing. Does not wait."""
        self._check()
        finished, emptied = self._state.finished, evolve(self._state, finished=())
        self._state = emptied  # no check for signals between a plain store and a return
        return finished

    def generate(self, requests: Sequence[Request]) -> dict[Key, Output]:
        """Serve these requests, and those submitted before, until nothing is left to do.

        As `Host.generate`: all are checked before any is queued, and Stalled is raised if none can
        make progress.
        """
        self._submit_all(requests)
        while self.step():
            pass
        outputs = {(output.request, output.choice): output for output in self._state.finished}
        error = None
        if self._state.waiting:
            error = Stalled(room_refusals(self._state, self._engine.setup), outputs)
        emptied = evolve(self._state, finished=())
        self._state = emptied  # no check for signals between a plain store and a return
        if error is not None:
            raise error
        return outputs

    def reset(self, mode: ResetMode = ResetMode.LOGICAL) -> None:
        """Forget every request, and everything on the device."""
        a(ResetMode).require("mode", mode)
        self._together.run(partial(self._reset, mode))

    def _submit_all(self, requests: Sequence[Request]) -> None:
        self._check()
        setup = self._engine.setup
        arguments.check_requests(setup, requests)
        state = self._state
        for one in requests:
            _check_choices(one)
            state = submit(state, one, setup)
        self._state = state

    def _begin(self) -> None:
        setup, state = self._engine.setup, begun(self._state, self._engine.setup)
        one = state.held[-1]
        request = one.request
        given = (
            self._last,
            arguments.slot(one.slot),
            *arguments.prompt(setup, request.prompt),
            arguments.params(setup, [request.params], [request.id]),
        )
        self._last = self._start("begin", *given, did=one)
        self._state = state

    def _launch(self, chunks: Chunks) -> None:
        given = arguments.chunks(self._engine.setup, chunks)
        self._last = self._start("launch", self._last, given, did=chunks)
        self._state = launched(self._state, chunks)

    def _deliver(self) -> None:
        """Read the oldest step, and deliver it; the device then leaves the outputs of it."""
        before = self._state.owed
        reasons = self._read_until("launch")
        self._start("deliver")
        state = delivered(self._state, reasons.tolist(), self._engine.setup.cleanup)
        if state.owed != before:
            self._start("take_outputs")
        self._state = state

    def _read_until(self, name: str) -> Ints:
        """Read reports, up to that of the oldest call of this entry point; returns its result."""
        while True:
            found = self._calls[0].name
            result = self._read_next()
            if found == name:
                return result

    def _read_all(self) -> None:
        while self._calls:
            self._read_next()

    def _read_next(self) -> Ints:
        """Read the oldest report. If it is a refusal, take back what was planned since."""
        call = self._calls[0]
        try:
            result = self._engine.finish(call.report)
        except Refused:
            self._withdraw()
            raise
        self._calls.popleft()
        if call.name == "take_outputs":
            self._keep(outputs_of(self._engine.setup, result))
        return result

    def _keep(self, taken: tuple[Output, ...]) -> None:
        names = {output.request for output in taken}
        self._state = evolve(
            self._state,
            owed=tuple(one for one in self._state.owed if one not in names),
            finished=(*self._state.finished, *taken),
        )

    def _withdraw(self) -> None:
        """Take back the oldest unread call, which was refused, and those that were so with it."""
        calls, self._last = [*self._calls], self._nothing()
        if calls[0].did is None:  # a delivery: someone else has delivered the step
            self._together.broken = True
        for call in reversed(calls):
            self._state = withdrawn(self._state, call.did)
        self._calls = deque(call for call in calls if call.did is None)
        if self._engine.setup.cleanup is CleanupMode.END:  # it waits for sequences of others, too
            self._start("free_finished")

    def _start(self, name: str, *given: Any, did: Held | Chunks | None = None) -> Array:
        report = self._engine.start(name, *given)
        self._calls.append(Call(name, report, did))
        return report

    def _reset(self, mode: ResetMode) -> None:
        self._engine.reset(mode)
        for _ in range(self._engine.stats().in_flight):
            with suppress(Refused):  # only a step of someone else has not retired
                self._engine.retire()
            self._engine.deliver()
        self._forget()

    def _forget(self) -> None:
        self._state, self._calls, self._together.broken = AheadState(), deque(), False
        self._last = self._nothing()

    def _nothing(self) -> Array:
        """The report of no call: the next one is not refused on its account."""
        return jnp.zeros((3 + self._engine.setup.geometry.slots,), jnp.int32)

    def _check(self) -> None:
        self._together.check()
        _ = self._engine.packed  # raises StateLost


def _with_cells(state: AheadState, chunks: Chunks, sign: int) -> AheadState:
    """The state in which the cells of a step are taken, or given back where the sign is -1."""
    counts = dict(chunks)
    held = (evolve(one, cells=one.cells + sign * counts.get(one.slot, 0)) for one in state.held)
    return evolve(state, held=tuple(held))


def _check_choices(request: Request) -> None:
    """Raise InvalidInput if a request has several choices, which are cloned in a prefill."""
    if request.n_generations > 1:
        raise InvalidInput(
            "Request.n_generations",
            seen=request.n_generations,
            allowed="1: prompts are read in parts, and no step forks a sequence",
            remedy="Serve it with impl.host.Host, or send one request for each choice.",
        )


def _submit_refusals(state: AheadState, request: Request, setup: Setup) -> Iterator[Refusal]:
    known = {one.id for one in state.waiting} | {*state.owed}
    known |= {one.request.id for one in state.held if not one.gone}
    if request.id in known | {output.request for output in state.finished}:
        yield Refusal(Reason.CHOICE_TAKEN, request.id, "an id that nothing in the engine has")
    yield from size_refusals(request, setup)
