"""Rung 5, the host's half: requests wait, are let in when their worst case fits, never starve.

Admission reserves: a request is let in only if the pages it could ever hold are there, so that a
round of an admitted request is never refused for lack of pages. First come, first served. Source:
DESIGN, "Admission"; seed 001, M5.1.
"""

from collections.abc import Iterator

from attrs import evolve, frozen

from spec.machines import lifecycle, naive, scheduling
from spec.machines.actions import Admit, Prefill, Reset, Submit
from spec.machines.pages import Pages
from spec.vocabulary import CleanupMode, Geometry, Limits, Reason, Refusal, Request, refused

Action = scheduling.Action | Submit | Admit


@frozen
class State:
    """waiting: not yet admitted, in order of arrival. admitted: still holding a slot."""

    scheduling: scheduling.State
    waiting: tuple[Request, ...] = ()
    admitted: tuple[Request, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing decodes."""
        return not self.waiting and not self.scheduling.queue


def initial(
    geometry: Geometry, limits: Limits, cleanup: CleanupMode = CleanupMode.INCREMENTAL
) -> State:
    """Nobody waits."""
    return State(scheduling.initial(geometry, limits, cleanup))


def refusals(state: State, action: Action) -> frozenset[Refusal]:
    """Why the action cannot be done; empty exactly if it can."""
    match action:
        case Submit(request):
            return frozenset(_submit_refusals(state, request))
        case Admit():
            return frozenset() if admissible(state) else frozenset(_admit_refusals(state))
        case _:
            return scheduling.refusals(state.scheduling, action)


def step(state: State, action: Action, choice: Pages | None = None) -> State:
    """Apply an action, or raise Refused. `choice`: the pages to take, in the order of taking."""
    found = refusals(state, action)
    if found:
        raise refused(found)
    return effect(state, action, choice)


def effect(state: State, action: Action, choice: Pages | None = None) -> State:
    """What an action does whose guards have passed: those of a rung include those below it."""
    match action:
        case Submit(request):
            return evolve(state, waiting=(*state.waiting, request))
        case Admit():
            chosen = admissible(state)
            below = scheduling.effect(state.scheduling, Prefill(chosen), choice)
            return _release(State(below, state.waiting[len(chosen) :], (*state.admitted, *chosen)))
        case Reset():
            return State(scheduling.effect(state.scheduling, action))
        case _:
            below = scheduling.effect(state.scheduling, action, choice)
            return _release(evolve(state, scheduling=below))


def abstract(state: State) -> naive.State:
    """The texts that have begun."""
    return scheduling.abstract(state.scheduling)


def lower(state: State, action: Action) -> tuple[naive.Action, ...]:
    """Waiting is invisible; an admission is a prefill."""
    match action:
        case Submit():
            return ()
        case Admit():
            return scheduling.lower(state.scheduling, Prefill(admissible(state)))
        case _:
            return scheduling.lower(state.scheduling, action)


def admissible(state: State) -> tuple[Request, ...]:
    """The longest run of waiting requests, from the oldest, that fits now."""
    chosen: tuple[Request, ...] = ()
    for request in state.waiting:
        if any(_room_refusals(state, (*chosen, request))):
            break
        chosen = (*chosen, request)
    return chosen


def reserved_pages(state: State) -> int:
    """Pages promised to admitted requests, used or not."""
    return sum(request.pages_needed(_geometry(state)) for request in state.admitted)


def fit_refusals(geometry: Geometry, limits: Limits, request: Request) -> Iterator[Refusal]:
    """Why a request could not run even in an empty engine."""
    yield from lifecycle.request_refusals(geometry, len(request.prompt), request.params)
    yield from scheduling.stop_refusals(limits, request.params.stops)
    for seen, most, what in (
        (request.pages_needed(geometry), geometry.pages, "pages in the pool"),
        (request.n_generations, geometry.slots, "slots, one per choice"),
        (len(request.prompt), limits.prefill_tokens, "tokens in one prefill"),
    ):
        if seen > most:
            yield Refusal(Reason.NEVER_FITS, seen, f"at most {most} {what}")


def _geometry(state: State) -> Geometry:
    return state.scheduling.geometry


def _release(state: State) -> State:
    """A request whose every choice has left its slot gives its reservation back."""
    details = state.scheduling.lifecycle.details
    holding = {detail.request for detail in details if detail is not None}
    admitted = tuple(request for request in state.admitted if request.id in holding)
    return evolve(state, admitted=admitted)


def _submit_refusals(state: State, request: Request) -> Iterator[Refusal]:
    known = {other.id for other in (*state.waiting, *state.admitted)}
    known |= {name for name, _ in lifecycle.taken_keys(state.scheduling.lifecycle)}
    if request.id in known:
        yield Refusal(Reason.CHOICE_TAKEN, request.id, "an id that nothing in the engine has")
    yield from fit_refusals(_geometry(state), state.scheduling.limits, request)


def _admit_refusals(state: State) -> Iterator[Refusal]:
    if not state.waiting:
        yield Refusal(Reason.QUEUE_EMPTY, 0, "at least 1 waiting request")
        return
    yield from _room_refusals(state, state.waiting[:1])


def _room_refusals(state: State, requests: tuple[Request, ...]) -> Iterator[Refusal]:
    yield from scheduling.refusals(state.scheduling, Prefill(requests))
    wanted = sum(request.pages_needed(_geometry(state)) for request in requests)
    left = _geometry(state).pages - reserved_pages(state)
    if wanted > left:
        yield Refusal(Reason.OUT_OF_PAGES, wanted, f"at most {left} unreserved pages")
