"""Rung admission: requests wait, and are admitted as soon as their worst case fits.

Admission reserves pages: a request is admitted only if as many pages as it could ever hold are
unreserved, so that a round of an admitted request is never refused for lack of pages. Requests are
admitted first come, first served. The rung is an extension by construction. Source:
docs/sources.md, "Worst-case admission" and "Page budget".
"""

from collections.abc import Iterator
from typing import Final

from spec.machines import lifecycle
from spec.machines.actions import Action, Admit, Free, Prefill, Submit
from spec.rung import (
    ChecksOf,
    Edge,
    Faults,
    Machine,
    Meet,
    Pages,
    Part,
    Rule,
    Rung,
    Stage,
    check,
    in_order,
)
from spec.state import State
from spec.vocabulary import (
    STANDARD,
    Capacity,
    Geometry,
    Limits,
    Reason,
    Refusal,
    Request,
)


def admissible(machine: Machine, state: State) -> tuple[Request, ...]:
    """The longest run of waiting requests, from the oldest, that fits now."""
    chosen: tuple[Request, ...] = ()
    for request in state.waiting:
        more = (*chosen, request)
        if machine.refusals(state, Prefill(more)) or any(_over_reserved(state, more)):
            break
        chosen = more
    return chosen


def reserved_pages(state: State) -> int:
    """Pages promised to admitted requests, used or not."""
    return _worst_case(state, state.admitted)


def _worst_case(state: State, requests: tuple[Request, ...]) -> int:
    return sum(request.pages_needed(state.geometry, state.capacity) for request in requests)


def fit_refusals(
    geometry: Geometry, limits: Limits, request: Request, capacity: Capacity = STANDARD
) -> Iterator[Refusal]:
    """Why a request could not run even in an empty engine."""
    for reason, faults in (
        (Reason.TOO_LONG, lifecycle.too_long(geometry, len(request.prompt), request.params)),
        (Reason.STOPS, lifecycle.too_many_stops(limits, request.params.stops)),
        (Reason.NEVER_FITS, _never_fits(geometry, limits, request, capacity)),
    ):
        for seen, allowed in faults:
            yield Refusal(reason, seen, allowed)


def _never_fits(geometry: Geometry, limits: Limits, request: Request, capacity: Capacity) -> Faults:
    for seen, most, what in (
        (request.pages_needed(geometry, capacity), geometry.pages, "pages in the pool"),
        (request.n_generations, geometry.slots, "slots, one per choice"),
        (len(request.prompt), limits.prefill_tokens, "tokens in one prefill"),
    ):
        if seen > most:
            yield seen, f"at most {most} {what}"


@check(Reason.CHOICE_TAKEN)
def _id_unused(_machine: Machine, state: State, action: Submit) -> Faults:
    """A request with this id waits, is admitted and holds a slot, or has an output that is not
    taken yet.
    """
    known = {other.id for other in (*state.waiting, *state.admitted)}
    known |= {name for name, _ in lifecycle.taken_keys(state)}
    if action.request.id in known:
        yield action.request.id, "an id that nothing in the engine has"


@check(Reason.TOO_LONG)
def _row_fits(_machine: Machine, state: State, action: Submit) -> Faults:
    """The prompt and `max_new` tokens are more than `max_len`."""
    yield from lifecycle.too_long(state.geometry, len(action.request.prompt), action.request.params)


@check(Reason.STOPS)
def _stops_fit(_machine: Machine, state: State, action: Submit) -> Faults:
    """There are more than `limits.stops` stop sequences, or one is longer than
    `limits.stop_len`.
    """
    yield from lifecycle.too_many_stops(state.limits, action.request.params.stops)


@check(Reason.NEVER_FITS)
def _can_fit(_machine: Machine, state: State, action: Submit) -> Faults:
    """The worst case needs more pages than the pool has, there are more choices than slots, or the
    prompt has more than `limits.prefill_tokens` tokens.
    """
    yield from _never_fits(state.geometry, state.limits, action.request, state.capacity)


def _submit(_machine: Machine, state: State, action: Submit, _pages: Pages | None) -> State:
    return state._replace(waiting=(*state.waiting, action.request))


@check(Reason.QUEUE_EMPTY)
def _some_waiting(_machine: Machine, state: State, _action: Admit) -> Faults:
    """No request waits."""
    if not state.waiting:
        yield 0, "at least 1 waiting request"


@check(Reason.OUT_OF_PAGES)
def _oldest_unreserved(_machine: Machine, state: State, _action: Admit) -> Faults:
    """The worst case of the oldest waiting request needs more pages than are not reserved by
    admitted ones.
    """
    yield from _over_reserved(state, state.waiting[:1])


def _admit(machine: Machine, state: State, _action: Admit, pages: Pages | None) -> State:
    chosen = admissible(machine, state)
    state = machine.effect(state, Prefill(chosen), pages)
    admitted = (*state.admitted, *chosen)
    return _unreserved(state._replace(waiting=state.waiting[len(chosen) :], admitted=admitted))


def _over_reserved(state: State, requests: tuple[Request, ...]) -> Faults:
    wanted = _worst_case(state, requests)
    left = state.geometry.pages - reserved_pages(state)
    if wanted > left:
        yield wanted, f"at most {left} unreserved pages"


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


_OLDEST_PREFILLED: Final = ChecksOf[Admit](
    kind=Prefill,
    action=lambda _machine, state, _action: Prefill(state.waiting[:1]),
    never=dict.fromkeys(
        (Reason.PREFILL_WIDTH, Reason.TOO_LONG, Reason.STOPS), "Submit refuses such a request"
    ),
)
RUNG = Rung(
    name="admission",
    requires=("scheduling",),
    owns=("waiting", "admitted"),
    rules={
        Submit: Rule(
            stages=(Stage((_id_unused, _row_fits, _stops_fit, _can_fit)),), effect=_submit
        ),
        Admit: Rule(
            stages=(
                *in_order(_some_waiting),
                Stage((_OLDEST_PREFILLED, _oldest_unreserved)),
            ),
            effect=_admit,
        ),
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
        "window": Meet("PROG", "Submit: TOO_LONG"),
        "prefix": Meet("EVICT", "admit with idle pages"),
        "lifecycle": Meet("PROG", "Admit: NO_FREE_SLOT"),
        "scheduling": Meet("ALONE", "Admit: done"),
        "chunks": "independent",
        "preemption": Meet("PROG", "preempt an admitted request"),
    },
)
