"""Requests, admission and outputs: a pure reducer, and a thin driver of the device around it.

A request is admitted, first come first served, when the pages it could ever hold are there, so that
no round of an admitted request is refused for lack of pages. What the device knows is asked of it
and not remembered here. Source: DESIGN, "Admission"; seed 001, M5.1.
"""

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from impl.engine import Engine, Output, Stats
from impl.setup import Setup
from spec.vocabulary import Reason, Refusal, Refused, Request, ResetMode, refused


@frozen
class HostState:
    """waiting: not yet admitted, oldest first. admitted: still holding a slot."""

    waiting: tuple[Request, ...] = ()
    admitted: tuple[Request, ...] = ()


def submit(state: HostState, request: Request, setup: Setup, stats: Stats) -> HostState:
    """The request joins those waiting. Raises Refused if it can never run or its id is taken."""
    found = tuple(_submit_refusals(state, request, setup, stats))
    if found:
        raise refused(found)
    return evolve(state, waiting=(*state.waiting, request))


def admissible(state: HostState, setup: Setup, stats: Stats) -> tuple[Request, ...]:
    """The longest run of waiting requests, from the oldest, that fits now."""
    chosen: tuple[Request, ...] = ()
    for request in state.waiting:
        if any(room_refusals(state, (*chosen, request), setup, stats)):
            break
        chosen = (*chosen, request)
    return chosen


def admit(state: HostState, chosen: Sequence[Request]) -> HostState:
    """The chosen requests, which are the oldest waiting, hold slots now."""
    return HostState(state.waiting[len(chosen) :], (*state.admitted, *chosen))


def release(state: HostState, stats: Stats) -> HostState:
    """A request that holds no slot any more gives its reservation back."""
    admitted = tuple(request for request in state.admitted if request.id in stats.occupants)
    return evolve(state, admitted=admitted)


def room_refusals(
    state: HostState, requests: Sequence[Request], setup: Setup, stats: Stats
) -> Iterator[Refusal]:
    """Why these requests cannot be prefilled together now."""
    geometry, limits = setup.geometry, setup.limits
    choices = sum(request.n_generations for request in requests)
    tokens = sum(len(request.prompt) for request in requests)
    reserved = sum(request.pages_needed(geometry) for request in state.admitted)
    wanted = sum(request.pages_needed(geometry) for request in requests)
    for seen, most, reason in (
        (len(requests), limits.prefill_seqs, Reason.PREFILL_WIDTH),
        (tokens, limits.prefill_tokens, Reason.PREFILL_WIDTH),
        (choices, geometry.slots - stats.active, Reason.NO_FREE_SLOT),
        (_prefill_pages(setup, requests), stats.free_pages, Reason.OUT_OF_PAGES),
        (wanted, geometry.pages - reserved, Reason.OUT_OF_PAGES),
        (stats.queued + choices, limits.queue, Reason.QUEUE_FULL),
        (stats.outputs + choices, limits.outputs, Reason.OUTPUTS_FULL),
    ):
        if seen > most:
            yield Refusal(reason, seen, f"at most {most}")


class Host:
    """Serves requests with an engine. Every refusal leaves host and engine as they were."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state = HostState()

    @property
    def state(self) -> HostState:
        """Who waits and who holds slots."""
        return self._state

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Refused if it can never run or its id is taken."""
        stats = self.stats()
        released = release(self._state, stats)
        self._state = submit(released, request, self._engine.setup, stats)

    def admit(self) -> tuple[Request, ...]:
        """Prefill as many waiting requests as fit; raises Refused if none does."""
        stats = self.stats()
        state = release(self._state, stats)
        chosen = admissible(state, self._engine.setup, stats)
        if not chosen:
            raise refused(_admit_refusals(state, self._engine.setup, stats))
        self._engine.prefill(chosen)
        self._state = admit(state, chosen)
        return chosen

    def generate(self, requests: Sequence[Request]) -> dict[tuple[int, int], Output]:
        """Serve these requests to the end: outputs by (id, choice).

        All are checked before any is queued. Raises Refused if one can never run, and also if
        nothing can go on: with cleanup NONE finished sequences keep their slots and pages.
        """
        stats = self.stats()
        queued = release(self._state, stats)
        for request in requests:
            queued = submit(queued, request, self._engine.setup, stats)
        self._state = queued
        outputs: dict[tuple[int, int], Output] = {}
        while self._state.waiting or self.stats().queued:
            try:
                self.admit()
            except Refused:
                if not self.stats().queued:
                    raise
            self._engine.generate()
            taken = self._engine.take_outputs()
            outputs.update({(output.request, output.choice): output for output in taken})
        return outputs

    def reset(self, mode: ResetMode = ResetMode.LOGICAL) -> None:
        """Forget every request, and everything on the device."""
        self._engine.reset(mode)
        self._state = HostState()

    def stats(self) -> Stats:
        """A few numbers of the device."""
        return self._engine.stats()


def _prefill_pages(setup: Setup, requests: Sequence[Request]) -> int:
    """Pages that the prompts take, and a partial page for each further choice."""
    geometry = setup.geometry
    return sum(
        geometry.pages_for(len(request.prompt))
        + (request.n_generations - 1) * (len(request.prompt) % geometry.page_size != 0)
        for request in requests
    )


def _submit_refusals(
    state: HostState, request: Request, setup: Setup, stats: Stats
) -> Iterator[Refusal]:
    geometry, limits = setup.geometry, setup.limits
    known = {other.id for other in (*state.waiting, *state.admitted)}
    if request.id in known | stats.occupants | stats.untaken:
        yield Refusal(Reason.CHOICE_TAKEN, request.id, "an id that nothing in the engine has")
    stops = request.params.stops
    for seen, most, reason in (
        (len(request.prompt) + request.params.max_new, geometry.max_len, Reason.TOO_LONG),
        (len(stops), limits.stops, Reason.STOPS),
        (max((len(stop) for stop in stops), default=0), limits.stop_len, Reason.STOPS),
        (request.pages_needed(geometry), geometry.pages, Reason.NEVER_FITS),
        (request.n_generations, geometry.slots, Reason.NEVER_FITS),
        (len(request.prompt), limits.prefill_tokens, Reason.NEVER_FITS),
    ):
        if seen > most:
            yield Refusal(reason, seen, f"at most {most}")


def _admit_refusals(state: HostState, setup: Setup, stats: Stats) -> tuple[Refusal, ...]:
    if not state.waiting:
        return (Refusal(Reason.QUEUE_EMPTY, 0, "at least 1 waiting request"),)
    return tuple(room_refusals(state, state.waiting[:1], setup, stats))
