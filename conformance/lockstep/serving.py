"""Serving to the end: what the specification does with requests until nothing is left to do.

A server is stepped by Submit, Admit, Generate and TakeOutputs. One call that serves a list of
requests does the same, so its outputs are known. Source: docs/sources.md, "Completion".
"""

from itertools import count, filterfalse
from typing import Final, NamedTuple

from attrs import evolve

from spec.fields import OutputEntry, output_entry
from spec.machines.actions import Admit, Generate, Submit, TakeOutputs
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Params, Request

MORE: Final = (
    Request(id=0, prompt=(3, 1), params=Params(max_new=3), n_generations=2),
    Request(id=1, prompt=(4,), params=Params(max_new=2, temperature=1.0, seed=5)),
)
"""The requests that are served beside those that wait; they get ids that nothing has."""


class Served(NamedTuple):
    """What is left when nothing goes on: nothing is left to do, or what waits can never be served,
    as where no slot is ever freed. outputs: by request and choice.
    """

    requests: tuple[Request, ...]
    state: State
    outputs: tuple[OutputEntry, ...]


def serve(machine: Machine, state: State) -> Served | None:
    """Serve what waits, and MORE if each of it can be submitted; None if neither can be told."""
    unused = filterfalse(_ids(state).__contains__, count())
    more = tuple(evolve(request, id=next(unused)) for request in MORE)
    return serve_with(machine, state, more) or serve_with(machine, state, ())


def serve_with(machine: Machine, state: State, requests: tuple[Request, ...]) -> Served | None:
    """Serve what waits and these requests; None if one is refused.

    Also None if two outputs would have the same name: a caller who gets both at once cannot tell
    them apart. The single actions compare them.
    """
    for request in requests:
        if machine.refusals(state, Submit(request)):
            return None
        state = machine.effect(state, Submit(request))
    outputs, before = list[OutputEntry](), None
    while state != before:
        before = state
        for action in (Admit(), Generate(), TakeOutputs()):
            if isinstance(action, TakeOutputs):
                outputs += map(output_entry, state.outputs)
            if not machine.refusals(state, action):
                state = machine.effect(state, action)
    if len({one[:2] for one in outputs}) < len(outputs):
        return None
    return Served(requests, state, tuple(sorted(outputs, key=lambda one: one[:2])))


def _ids(state: State) -> set[int]:
    """The ids of all requests that something in the state names."""
    return {
        *(one.id for one in (*state.waiting, *state.admitted)),
        *(detail.request for detail in state.details if detail is not None),
        *(output.request for output in state.outputs),
    }
