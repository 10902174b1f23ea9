"""Serving to the end: what the specification does with requests until nothing is left to do.

A server is stepped by Submit, Admit, Generate and TakeOutputs. One call that serves a list of
requests does the same, so its outputs are known. Source: docs/sources.md, "Completion".
"""

from collections.abc import Iterator
from itertools import count, filterfalse
from typing import Final, NamedTuple

from attrs import evolve

from spec.fields import OutputEntry, output_entry
from spec.machines.actions import Admit, Generate, Submit, TakeOutputs
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Params, Reason, Request

MORE: Final = (
    Request(id=0, prompt=(3, 1), params=Params(max_new=3), n_generations=2),
    Request(id=1, prompt=(4,), params=Params(max_new=2, temperature=1.0, seed=5)),
)
"""The requests that are served beside those that wait; they get ids that nothing has."""


class Served(NamedTuple):
    """What is left when nothing goes on: nothing is left to do, or what waits can never be served,
    as where no slot is ever freed. outputs: ordered by `by_name`.
    """

    requests: tuple[Request, ...]
    state: State
    outputs: tuple[OutputEntry, ...]


def serve(machine: Machine, state: State) -> Served | None:
    """Serve what waits, and mostly MORE, if each of it can be submitted; None if neither can be.

    None also with a step in flight, beside which nothing is admitted.
    """
    if state.flights:
        return None
    more = () if len(state.queue) % 3 == 1 else _more(state)
    return serve_with(machine, state, more) or serve_with(machine, state, ())


def serve_with(machine: Machine, state: State, requests: tuple[Request, ...]) -> Served | None:
    """Serve what waits and these requests; None if one of them cannot be submitted."""
    state, reasons = _submitted(machine, state, requests)
    if reasons:
        return None
    outputs, before = list[OutputEntry](), None
    while state != before:
        before = state
        for action in (Admit(), Generate()):
            if not machine.refusals(state, action):
                state = machine.effect(state, action)
        outputs += map(output_entry, state.outputs)
        state = machine.effect(state, TakeOutputs())
    return Served(requests, state, tuple(sorted(outputs, key=by_name)))


def by_name(output: OutputEntry) -> tuple[object, ...]:
    """Orders outputs by request and choice; those of one name by the rest."""
    return (*output[:3], str(output[3:]))


def refused_lists(
    machine: Machine, state: State
) -> Iterator[tuple[tuple[Request, ...], frozenset[Reason]]]:
    """Lists that are refused as a whole, since Submit refuses their last request, for its reasons.

    Its id is that of the request before it or of something in the state, or it can never run.
    """
    right, other = _more(state)
    wrong = (
        evolve(other, id=right.id),
        *(evolve(other, id=one) for one in sorted(_ids(state))[:1]),
        evolve(other, n_generations=state.geometry.slots + 1),
    )
    for request in wrong:
        reasons = _submitted(machine, state, (right, request))[1]
        if reasons and not machine.refusals(state, Submit(right)):
            yield (right, request), reasons


def _submitted(
    machine: Machine, state: State, requests: tuple[Request, ...]
) -> tuple[State, frozenset[Reason]]:
    """The state after these are submitted, and why one is refused."""
    for request in requests:
        refusals = machine.refusals(state, Submit(request))
        if refusals:
            return state, frozenset(one.reason for one in refusals)
        state = machine.effect(state, Submit(request))
    return state, frozenset()


def _more(state: State) -> tuple[Request, ...]:
    """MORE, with ids that nothing has."""
    unused = filterfalse(_ids(state).__contains__, count())
    return tuple(evolve(request, id=next(unused)) for request in MORE)


def _ids(state: State) -> set[int]:
    """The ids of all requests that something in the state names."""
    return {
        *(one.id for one in (*state.waiting, *state.admitted)),
        *(detail.request for detail in state.details if detail is not None),
        *(output.request for output in state.outputs),
    }
