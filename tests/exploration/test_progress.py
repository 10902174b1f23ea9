"""PROG in explored states: the scheduler brings the oldest request further, or is found out."""

from collections.abc import Callable
from typing import Any

import pytest
from explore_tools import after, searched, sizes, work_alone

from conformance.exploration import progress
from conformance.exploration.instances import instance
from conformance.exploration.search import told
from spec import scheduler
from spec.machines import actions as act
from spec.state import Output
from spec.vocabulary import FinishReason

CHOSEN = instance("preemption", sizes((2, 2, 2, 2)))
FEW_STATES = 800
"""The first ones, of which some have requests that need each other's pages."""


@pytest.fixture(autouse=True)
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches run in this process."""
    work_alone(monkeypatch)


def test_the_oldest_request_goes_on_from_every_state() -> None:
    """Whatever a caller has done, a turn of the scheduler brings the oldest request further."""
    search, found = searched(instance("preemption", sizes((2, 2, 1, 2))))
    graph = search.graph

    assert (None, True) == (found, graph.complete)
    assert (74, 596, 1_254) == (graph.states, graph.transitions, graph.illegal)


def idle(_machine: Any, _state: Any, jobs: Any, _do: Any) -> Any:
    """A turn in which nothing is done."""
    return jobs


def nobody(*_: object) -> tuple[int, ...]:
    """A rule that finds no victims."""
    return ()


def no_round(_machine: Any, state: Any, jobs: Any) -> Any:
    """A round that does not look at what is queued: it reads chunks beside it."""
    slots = scheduler.running(state, jobs)
    return (act.MixedRound(tuple((slot, 1) for slot in range(len(slots)))),)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("turn", idle, "the oldest request goes no further"),
        ("victims", nobody, "the oldest request goes no further"),
        ("next_round", no_round, "the scheduler takes an action that is refused"),
    ],
)
def test_a_scheduler_that_stalls_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any], message: str
) -> None:
    """A turn without a round, a rule that finds no victims, and a round that is refused."""
    monkeypatch.setattr(scheduler, name, wrong)
    search, found = searched(CHOSEN, most_states=FEW_STATES)

    assert found is not None
    assert ("PROG", None) == (found.clause, found.move)
    assert found.message.startswith(message)
    assert told(CHOSEN, search.graph, found).startswith("reserve(")


def test_what_could_never_run_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices that need more pages than there are, and a state without room for an output."""
    monkeypatch.setattr(scheduler, "turn", idle)
    begun = ("reserve(0)", "assign(0)", "reserve(1)")
    two, one = after(CHOSEN, *begun, "assign(1, 2)"), after(CHOSEN, *begun, "assign(1)")
    ended = Output(request=3, choice=0, prompt=(1,), tokens=(1,), reason=FinishReason.LIMIT)

    assert progress.violation(CHOSEN.machine, two) is not None
    assert progress.violation(CHOSEN.machine, one) is None
    assert progress.violation(CHOSEN.machine, two._replace(outputs=(ended, ended))) is None
