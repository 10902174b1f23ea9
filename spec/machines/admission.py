"""Rung admission: requests wait, and are admitted as soon as their worst case fits.

Admission reserves pages: a request is admitted only if as many pages as it could ever hold are
unreserved, so that a round of an admitted request is never refused for lack of pages. Requests are
admitted first come, first served. The rung is an extension by construction. Source:
docs/sources.md, "Worst-case admission" and "Page budget".
"""

from collections.abc import Iterator

from spec.machines import lifecycle
from spec.machines.actions import Action, Admit, Free, Prefill, Submit
from spec.rung import Edge, Machine, Meet, Pages, Part, Rule, Rung
from spec.state import State
from spec.vocabulary import Geometry, Limits, Reason, Refusal, Request


def admissible(machine: Machine, state: State) -> tuple[Request, ...]:
    """The longest run of waiting requests, from the oldest, that fits now."""
    chosen: tuple[Request, ...] = ()
    for request in state.waiting:
        if any(_room_refusals(machine, state, (*chosen, request))):
            break
        chosen = (*chosen, request)
    return chosen


def reserved_pages(state: State) -> int:
    """Pages promised to admitted requests, used or not."""
    return sum(request.pages_needed(state.geometry) for request in state.admitted)


def fit_refusals(geometry: Geometry, limits: Limits, request: Request) -> Iterator[Refusal]:
    """Why a request could not run even in an empty engine."""
    yield from lifecycle.request_refusals(geometry, len(request.prompt), request.params)
    yield from lifecycle.stop_refusals(limits, request.params.stops)
    for seen, most, what in (
        (request.pages_needed(geometry), geometry.pages, "pages in the pool"),
        (request.n_generations, geometry.slots, "slots, one per choice"),
        (len(request.prompt), limits.prefill_tokens, "tokens in one prefill"),
    ):
        if seen > most:
            yield Refusal(Reason.NEVER_FITS, seen, f"at most {most} {what}")


def _submit_refusals(_machine: Machine, state: State, action: Submit) -> Iterator[Refusal]:
    request = action.request
    known = {other.id for other in (*state.waiting, *state.admitted)}
    known |= {name for name, _ in lifecycle.taken_keys(state)}
    if request.id in known:
        yield Refusal(Reason.CHOICE_TAKEN, request.id, "an id that nothing in the engine has")
    yield from fit_refusals(state.geometry, state.limits, request)


def _submit(_machine: Machine, state: State, action: Submit, _pages: Pages | None) -> State:
    return state._replace(waiting=(*state.waiting, action.request))


def _admit_refusals(machine: Machine, state: State, _action: Admit) -> Iterator[Refusal]:
    if not state.waiting:
        yield Refusal(Reason.QUEUE_EMPTY, 0, "at least 1 waiting request")
        return
    yield from _room_refusals(machine, state, state.waiting[:1])


def _admit(machine: Machine, state: State, _action: Admit, pages: Pages | None) -> State:
    chosen = admissible(machine, state)
    state = machine.effect(state, Prefill(chosen), pages)
    admitted = (*state.admitted, *chosen)
    return _unreserved(state._replace(waiting=state.waiting[len(chosen) :], admitted=admitted))


def _room_refusals(
    machine: Machine, state: State, requests: tuple[Request, ...]
) -> Iterator[Refusal]:
    yield from machine.refusals(state, Prefill(requests))
    wanted = sum(request.pages_needed(state.geometry) for request in requests)
    left = state.geometry.pages - reserved_pages(state)
    if wanted > left:
        yield Refusal(Reason.OUT_OF_PAGES, wanted, f"at most {left} unreserved pages")


def _unreserve(_machine: Machine, _before: State, _action: Free, after: State) -> State:
    return _unreserved(after)


def _unreserved(state: State) -> State:
    """Drop the reservation of each request of which no choice holds a slot."""
    holding = {detail.request for detail in state.details if detail is not None}
    admitted = tuple(request for request in state.admitted if request.id in holding)
    return state._replace(admitted=admitted)


def _lower(machine: Machine, state: State, action: Action, pages: Pages | None) -> tuple[Part, ...]:
    """Waiting is invisible; an admission is a prefill."""
    match action:
        case Submit():
            return ()
        case Admit():
            return ((Prefill(admissible(machine, state)), pages),)
        case _:
            return ((action, pages),)


RUNG = Rung(
    name="admission",
    requires=("scheduling",),
    owns=("waiting", "admitted"),
    rules={
        Submit: Rule(refusals=_submit_refusals, effect=_submit),
        Admit: Rule(refusals=_admit_refusals, effect=_admit),
    },
    follows={Free: _unreserve},
    clauses=("PROG",),
    edges=(Edge(lower=_lower),),
    meets={
        "naive": "independent",
        "cache": "independent",
        "pages": Meet("PROG", "Admit: OUT_OF_PAGES"),
        "sharing": "independent",
        "rollback": "independent",
        "window": "independent",
        "lifecycle": Meet("PROG", "Admit: NO_FREE_SLOT"),
        "scheduling": Meet("ALONE", "Admit: done"),
    },
)
