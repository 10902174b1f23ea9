"""PROG in every state: a turn of the scheduler brings the oldest request further."""

from spec import scheduler
from spec.machines.actions import Action
from spec.machines.lifecycle import detail_of
from spec.machines.pages import used
from spec.machines.preemption import slots_of_request
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Refused, Request


def violation(machine: Machine, state: State) -> str | None:
    """What a turn from this state does wrong, or None.

    The requests in slots count as arrived in the order of their ids. Nothing is asked where there
    is no room for an output, or where the oldest request needs more pages than there are: it would
    not have arrived.
    """
    jobs = _running(state)
    if not jobs or len(state.outputs) == state.limits.outputs:
        return None
    if scheduler.pages_needed(machine, state, jobs[0].request) > state.geometry.pages:
        return None
    arrived = [job.request.id for job in jobs]
    before, after = scheduler.ranks(state, jobs, arrived), state

    def do(action: Action) -> State:
        nonlocal after
        after = machine.step(after, action)
        return after

    try:
        jobs = scheduler.turn(machine, state, jobs, do)
    except Refused as error:
        return f"the scheduler takes an action that is refused: {error}"
    ranks = scheduler.ranks(after, jobs, arrived)
    if scheduler.oldest_stalls(before, ranks):
        return f"the oldest request goes no further: {before}, then {ranks}"
    return None


def _running(state: State) -> scheduler.Jobs:
    """The requests with a choice that has not finished, by id."""
    names = {detail.request for detail in state.details if detail and not detail.finished}
    return tuple(scheduler.Job(_request(state, name), None) for name in sorted(names))


def _request(state: State, name: int) -> Request:
    slots = slots_of_request(state, name)
    detail = detail_of(state, slots[0])
    prompt = used(state, slots[0]).tokens[: detail.prompt_len]
    return Request(id=name, prompt=prompt, params=detail.params, n_generations=len(slots))
