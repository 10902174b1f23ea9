"""Rung admission: generators of waiting requests, and the outcomes that fuzzing must reach."""

from collections.abc import Iterator
from typing import Final

from conformance.history import Step
from conformance.rungs.pages import at_edge
from conformance.rungs.prefix import make_idle, use_up_pages
from conformance.rungs.record import ActionKit, RungKit, Session
from conformance.rungs.scheduling import ROUND, make_room
from conformance.rungs.shared_generators import (
    Digits,
    cells_in,
    constant,
    has_queued,
    rarely,
    request,
    when,
)
from conformance.rungs.simpler import simpler_requests
from spec.machines.actions import Admit, Prefill, Publish, Reserve, Submit
from spec.state import State
from spec.vocabulary import Params, Request


def submit(state: State, drawn: int, serial: int) -> Submit:
    """Submit a new request; rarely one that can never fit, or one that was submitted before."""
    digits = Digits(drawn)
    known = (*state.waiting, *state.admitted)
    if digits.rarely(6) and known:
        return Submit(digits.one_of(known))
    return Submit(request(state, digits, serial))


def reserving(state: State, drawn: int, serial: int) -> Submit:
    """A request whose worst case needs every page not yet promised, or one page more."""
    digits, geometry = Digits(drawn), state.geometry
    known = (*state.waiting, *state.admitted)
    promised = sum(request.pages_needed(geometry, state.capacity) for request in known)
    left = max(0, geometry.pages - promised) + digits.below(2)
    whole = cells_in(state, max(1, min(left, geometry.pages_per_seq)))
    length = max(1, min(1 + digits.below(whole), state.limits.prefill_tokens, whole - 1))
    params = Params(max_new=max(1, whole - length))
    return Submit(Request(id=serial, prompt=(0,) * length, params=params))


def _submit(session: Session, drawn: int) -> Step:
    draw = reserving if drawn % 3 == 2 else submit
    return draw(session.state, drawn // 3, session.next_id())


def admit_at_edge(session: Session, drawn: int) -> Step:
    """Admit, with as many free pages as the prompts of a few waiting requests take, or mostly one
    less. Sequences that were not admitted hold the others.
    """
    digits = Digits(drawn)
    for _ in range(0 if session.state.waiting else 2):
        session.take(Submit(_little(session.state, digits, session.next_id())))
    prompts = Prefill(session.state.waiting[: digits.one_of((2, 3, 2, 1))])
    at_edge(session, digits.below(64), prompts, short=digits.below(3) > 0)
    return Admit()


def admit_to_idle(session: Session, drawn: int) -> Step:
    """Admit where idle pages of the index alone are left, and a slot."""
    digits = Digits(drawn)
    if not {Publish, Reserve} <= session.actions:
        return admit_at_edge(session, drawn)
    if not session.state.waiting:
        session.take(Submit(_little(session.state, digits, session.next_id())))
    make_idle(session, digits)
    make_room(session, Reserve(), digits)
    use_up_pages(session, digits, slots=session.state.geometry.slots - 1)
    return Admit()


def _little(state: State, digits: Digits, serial: int) -> Request:
    """A request of a page or two."""
    length = 1 + digits.below(min(state.geometry.page_size + 1, state.geometry.max_len - 1))
    return Request(id=serial, prompt=(0,) * length, params=Params(max_new=1 + digits.below(2)))


def take_its_name(session: Session, drawn: int) -> Step:
    """Prefill a request that has the id of one that waits, which then has to wait for that too."""
    digits, state = Digits(drawn), session.state
    name = digits.one_of(state.waiting).id if state.waiting else session.next_id()
    return Prefill((request(state, digits, name),))


def _has_waiting(state: State) -> object:
    return state.waiting


def _simpler(action: Submit) -> Iterator[Step]:
    for smaller in simpler_requests(action.request):
        yield Submit(smaller)


KIT: Final = RungKit(
    rung="admission",
    actions={
        Submit: ActionKit(simpler=_simpler),
        Admit: ActionKit(),
    },
    rules={
        "admission": {
            "submit": _submit,
            "admit": when(_has_waiting, constant(Admit()), "submit"),
            "admit_again": rarely(3, constant(Admit()), "admit"),
            "admit_at_edge": admit_at_edge,
            "admit_to_idle": rarely(2, admit_to_idle, "admit"),
            "take_its_name": rarely(2, when(_has_waiting, take_its_name, "submit"), "serve"),
            "serve": when(has_queued, ROUND, "admit"),
        }
    },
    needs=frozenset({Submit, Admit}),
    warmup=(Submit(Request(id=3, prompt=(1,), params=Params(max_new=1))), Admit()),
    driven={"PROG": (Admit,)},
)
