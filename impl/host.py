"""Requests, admission and outputs: a pure reducer, and a thin driver of the device around it.

A request is admitted, first come first served, when as many pages as it could ever hold are
unreserved, so that no round of an admitted request is refused for lack of pages. The state of the
device is read from it when needed, and not mirrored here. Source: docs/sources.md, "Worst-case
admission" and "Page budget".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce

from attrs import evolve, frozen

from impl import arguments
from impl.engine import Engine, Key, Output, Stats
from impl.setup import Setup
from impl.together import Together
from spec.vocabulary import Reason, Refusal, Request, ResetMode, refused
from spec.vocabulary.errors import KvspecError
from spec.vocabulary.rules import a


class Stalled(KvspecError):
    """Requests are waiting or decoding, and none can make progress.

    Common causes: cleanup NONE, which keeps slots and pages of finished sequences until a reset;
    slots that were reserved or prefilled without the host and are never freed; a waiting request
    with the id of one that was prefilled without the host, and whose output is among these.
    `refusals`: why the oldest waiting request is not admitted, or why the next round is not done.
    `outputs`: outputs that had finished; they are taken, and only this error holds them. The
    requests keep waiting.
    """

    def __init__(self, refusals: Iterable[Refusal], outputs: Mapping[Key, Output]) -> None:
        self.refusals, self.outputs = tuple(refusals), dict(outputs)
        why = "; ".join(str(refusal) for refusal in self.refusals)
        super().__init__(
            f"no request can make progress, {len(self.outputs)} outputs have finished: {why}. "
            "Free slots, or reset and use a cleanup mode that releases finished sequences."
        )


@frozen
class HostState:
    """waiting: requests not yet admitted, oldest first. admitted: requests that still hold a slot.

    finished: outputs that have left the device and are not returned yet.
    """

    waiting: tuple[Request, ...] = ()
    admitted: tuple[Request, ...] = ()
    finished: tuple[Output, ...] = ()


def submit(state: HostState, request: Request, setup: Setup, stats: Stats) -> HostState:
    """Add a request to the waiting ones. Raises Refused if it can never run or its id is taken."""
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
    """Move the chosen requests, the oldest waiting ones, to the admitted ones."""
    return evolve(state, waiting=state.waiting[len(chosen) :], admitted=(*state.admitted, *chosen))


def release(state: HostState, stats: Stats) -> HostState:
    """Drop the reservation of each request that no longer holds a slot."""
    holding = {request for request, _ in stats.occupants}
    return evolve(state, admitted=tuple(one for one in state.admitted if one.id in holding))


def room_refusals(
    state: HostState, requests: Sequence[Request], setup: Setup, stats: Stats
) -> Iterator[Refusal]:
    """Why these requests, each of which could run alone, cannot be prefilled together now.

    As on the device, steps in flight are checked only if the width and the ids of the requests are
    right, and room only if there are none.
    """
    geometry, limits = setup.geometry, setup.limits
    yield from (
        list(_over(Reason.PREFILL_WIDTH, len(requests), limits.prefill_seqs, "prompts"))
        + list(_over(Reason.PREFILL_WIDTH, _tokens(requests), limits.prefill_tokens, "tokens"))
        or list(_taken_choices(state, requests, stats))
        or list(_over(Reason.IN_FLIGHT, stats.in_flight, 0, "steps in flight"))
        or list(_lacking(requests, setup, stats))
    )
    reserved = sum(request.pages_needed(geometry) for request in state.admitted)
    wanted = sum(request.pages_needed(geometry) for request in requests)
    yield from _over(Reason.OUT_OF_PAGES, wanted, geometry.pages - reserved, "unreserved pages")


class Host:
    """Serves requests with an engine. Every refusal leaves host and engine as they were.

    After an interrupt (SIGINT in the main thread) the host goes on where it was: requests that were
    queued stay queued, which `state` shows, and `generate([])` serves them. Outputs that had left
    the device are kept for the next `generate` or `take_outputs`; until then their ids are taken.
    Any other exception, an error of XLA or one from the handler of another signal, may leave host
    and engine in different states: then every method raises StateLost, until `reset`, and `state`
    still shows the requests that were waiting.
    """

    def __init__(self, engine: Engine) -> None:
        a(Engine).require("engine", engine)
        self._engine = engine
        self._state = HostState()
        self._together = Together()

    @property
    def state(self) -> HostState:
        """The waiting requests, and those that held slots when the host last checked."""
        return self._state

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Refused if it can never run or its id is taken."""
        a(Request).require("request", request)
        self._submit_all([request])

    def admit(self) -> tuple[Request, ...]:
        """Prefill as many waiting requests as fit; raises Refused if none does."""
        stats = self.settle()
        chosen = self._admit(stats)
        if not chosen:
            raise refused(_admit_refusals(self._state, self._engine.setup, stats))
        return chosen

    def generate_rounds(self) -> tuple[int, Reason | None]:
        """Run at most `limits.rounds` rounds: the number done, and why the next one was refused."""
        self._together.check()
        return self._engine.generate()

    def take_outputs(self) -> tuple[Output, ...]:
        """The finished choices since the last call, in order of finishing."""
        self._collect()
        finished, emptied = self._state.finished, evolve(self._state, finished=())
        self._state = emptied  # no check for signals between a plain store and a return
        return finished

    def generate(self, requests: Sequence[Request]) -> dict[Key, Output]:
        """Serve these requests, and those submitted before, until nothing is left to do.

        Returns every output that finishes meanwhile or was not taken yet, by (id, choice). All
        requests are checked before any is queued: raises Refused if one can never run or its id is
        taken, and then none of them is queued. Raises Stalled if none can make progress. After an
        interrupt `generate([])` goes on with those that were queued.
        """
        stalled = self._serve(self._submit_all(requests))
        outputs = {(output.request, output.choice): output for output in self._state.finished}
        error = None if stalled is None else Stalled(stalled, outputs)
        emptied = evolve(self._state, finished=())
        self._state = emptied  # no check for signals between a plain store and a return
        if error is not None:
            raise error
        return outputs

    def settle(self) -> Stats:
        """Drop the reservations of requests that no longer hold a slot; returns the statistics.

        Every method that needs it does so itself. A caller that also drives the engine directly
        calls it before a new request takes the id of one that has left.
        """
        stats = self.stats()
        self._state = release(self._state, stats)
        return stats

    def reset(self, mode: ResetMode = ResetMode.LOGICAL) -> None:
        """Forget every request, and everything on the device."""
        a(ResetMode).require("mode", mode)
        self._together.run(partial(self._reset, mode))

    def stats(self) -> Stats:
        """The statistics of the engine."""
        self._together.check()
        return self._engine.stats()

    def _submit_all(self, requests: Sequence[Request]) -> Stats:
        setup = self._engine.setup
        arguments.check_requests(setup, requests)
        stats = self.settle()
        self._state = reduce(
            lambda state, one: submit(state, one, setup, stats), requests, self._state
        )
        return stats

    def _serve(self, stats: Stats) -> tuple[Refusal, ...] | None:
        """Admit, decode and collect until nothing is left to do; else why there is no progress."""
        while True:
            admitted = self._admit(stats)
            done, reason = self.generate_rounds()
            taken = self._collect()
            stats = self.settle()
            if not self._state.waiting and not stats.queued:
                return None
            if not (admitted or done or taken):
                return self._obstacles(stats, reason)

    def _admit(self, stats: Stats) -> tuple[Request, ...]:
        chosen = admissible(self._state, self._engine.setup, stats)
        if chosen:
            self._together.check()
            self._together.run(partial(self._prefill, chosen))
        return chosen

    def _collect(self) -> tuple[Output, ...]:
        """Move outputs from the device to the host, which keeps them until they are returned."""
        self._together.check()
        return self._together.run(self._take)

    def _prefill(self, chosen: tuple[Request, ...]) -> None:
        self._engine.prefill(chosen)
        self._state = admit(self._state, chosen)

    def _take(self) -> tuple[Output, ...]:
        taken = self._engine.take_outputs()
        self._state = evolve(self._state, finished=(*self._state.finished, *taken))
        return taken

    def _reset(self, mode: ResetMode) -> None:
        self._engine.reset(mode)
        self._state, self._together.broken = HostState(), False

    def _obstacles(self, stats: Stats, reason: Reason | None) -> tuple[Refusal, ...]:
        if self._state.waiting:
            return _admit_refusals(self._state, self._engine.setup, stats)
        return (Refusal(reason, stats.queued, "a round of what is queued"),) if reason else ()


def _over(reason: Reason, seen: int, most: int, what: str) -> Iterator[Refusal]:
    if seen > most:
        yield Refusal(reason, seen, f"at most {most} {what}")


def _tokens(requests: Sequence[Request]) -> int:
    return sum(len(request.prompt) for request in requests)


def _taken_choices(
    state: HostState, requests: Sequence[Request], stats: Stats
) -> Iterator[Refusal]:
    kept = {(output.request, output.choice) for output in state.finished}
    taken = stats.occupants | stats.untaken | kept
    for request in requests:
        if any(name == request.id and at < request.n_generations for name, at in taken):
            yield Refusal(Reason.CHOICE_TAKEN, request.id, "an unused request id")


def _lacking(requests: Sequence[Request], setup: Setup, stats: Stats) -> Iterator[Refusal]:
    """What a prefill of these requests lacks: slots, pages, queue entries or outputs."""
    geometry, limits = setup.geometry, setup.limits
    choices = sum(request.n_generations for request in requests)
    pages = sum(
        geometry.pages_for(len(request.prompt))
        + (request.n_generations - 1) * (len(request.prompt) % geometry.page_size != 0)
        for request in requests
    )
    free_slots = geometry.slots - stats.active - stats.held_slots
    queued = stats.queued + stats.promised + choices
    yield from _over(Reason.NO_FREE_SLOT, choices, free_slots, "choices")
    yield from _over(Reason.OUT_OF_PAGES, pages, stats.free_pages + stats.idle_pages, "pages")
    yield from _over(Reason.QUEUE_FULL, queued, limits.queue, "queue entries")
    yield from _over(Reason.OUTPUTS_FULL, stats.outputs + choices, limits.outputs, "outputs")


def _submit_refusals(
    state: HostState, request: Request, setup: Setup, stats: Stats
) -> Iterator[Refusal]:
    known = {other.id for other in (*state.waiting, *state.admitted)}
    known |= {output.request for output in state.finished}
    if request.id in known | {one for one, _ in stats.occupants | stats.untaken}:
        yield Refusal(Reason.CHOICE_TAKEN, request.id, "an id that nothing in the engine has")
    yield from size_refusals(request, setup)
    prompt, limits = len(request.prompt), setup.limits
    yield from _over(Reason.NEVER_FITS, prompt, limits.prefill_tokens, "tokens in one prefill")


def size_refusals(request: Request, setup: Setup) -> Iterator[Refusal]:
    """Why this request could not run even alone, if its prompt may be read in parts."""
    geometry, limits = setup.geometry, setup.limits
    prompt, stops = len(request.prompt), request.params.stops
    longest = max((len(stop) for stop in stops), default=0)
    whole, pages = prompt + request.params.max_new, request.pages_needed(geometry)
    yield from _over(Reason.TOO_LONG, whole, geometry.max_len, "tokens")
    yield from _over(Reason.STOPS, len(stops), limits.stops, "stop sequences")
    yield from _over(Reason.STOPS, longest, limits.stop_len, "tokens in a stop sequence")
    yield from _over(Reason.NEVER_FITS, pages, geometry.pages, "pages in the pool")
    yield from _over(Reason.NEVER_FITS, request.n_generations, geometry.slots, "slots")


def _admit_refusals(state: HostState, setup: Setup, stats: Stats) -> tuple[Refusal, ...]:
    if not state.waiting:
        return (Refusal(Reason.QUEUE_EMPTY, 0, "at least 1 waiting request"),)
    return tuple(room_refusals(state, state.waiting[:1], setup, stats))
