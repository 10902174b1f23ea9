"""The adapter of the reference engine: all that it shows is what the specification has."""

from functools import partial
from typing import Any, Final, cast

import pytest
from spec_engine import SpecEngine, small

from conformance.engines.ours import Ours
from conformance.protocol import Action, EngineFailed, Poison
from impl.host import Host
from spec.fields import VIEWED
from spec.machines import actions as act
from spec.vocabulary import (
    CleanupMode,
    Params,
    Reason,
    Refusal,
    Request,
    ResetMode,
    Tokens,
    default_limits,
)

SIZES: Final = small(pages=16, page_size=2, slots=4, pages_per_seq=4)
GIVEN: Final = (SIZES, default_limits(SIZES), CleanupMode.END)
REQUESTS: Final = tuple(
    Request(id=number, prompt=(5, number), params=Params(max_new=most), n_generations=choices)
    for number, most, choices in ((1, 1, 1), (2, 4, 2), (3, 1, 1), (4, 3, 1))
)
"""Some that end at once and others that go on, so that a turn serves a part of them."""
MIXED: Final[tuple[Action, ...]] = (
    act.Submit(REQUESTS[1]),
    act.Submit(REQUESTS[0]),
    act.Admit(),
    act.Generate(),
    act.Reserve(3),
    act.TakeOutputs(),
    act.Reset(ResetMode.PHYSICAL),
)
"""Actions after which statistics, outputs, log-probabilities and read sets change."""


def both(*, observed: bool = True) -> tuple[Ours, SpecEngine]:
    """The reference engine and the specification, of the same sizes."""
    return Ours(*GIVEN, observed=observed), SpecEngine(*GIVEN)


def plain(value: Any) -> Any:
    """A statistic without its type of collection, in which sets have no order."""
    return sorted(value) if isinstance(value, set | frozenset | tuple | list) else value


def statistics(engine: Ours | SpecEngine, right: SpecEngine) -> dict[str, Any]:
    """The statistics that the specification has, of an engine."""
    shown = engine.statistics()
    return {name: plain(shown[name]) for name in right.statistics()}


def require_alike(ours: Ours, right: SpecEngine) -> None:
    """Everything that both show is the same; a cell there is the text that it belongs to."""
    seen, expected = ours.observe(), right.observe()
    for field in VIEWED:
        value = getattr(seen, field.name)
        if value is not None and field.name != "cells":
            assert getattr(expected, field.name) == value
    for slot in range(SIZES.slots if seen.cells is not None else 0):
        assert [seen.expected(cast(Tokens, text)) for text in expected.read(slot)] == [
            *seen.read(slot)
        ]
    assert statistics(right, right) == statistics(ours, right)
    assert not hasattr(ours, "logprobs") or right.logprobs() == tuple(ours.logprobs())
    assert right.attend() == ours.attend()


@pytest.mark.parametrize("observed", [True, False])
def test_everything_is_shown_as_it_is_after_every_action(*, observed: bool) -> None:
    """View, statistics and read sets are right, and log-probabilities if they are kept."""
    ours, right = both(observed=observed)
    assert observed == hasattr(ours, "logprobs")
    for number, action in enumerate(MIXED):
        assert right.apply(action) == ours.apply(action)
        ours.poison(list(Poison)[number % len(Poison)])

        require_alike(ours, right)


@pytest.mark.parametrize("waiting", range(len(REQUESTS) + 1))
@pytest.mark.parametrize("ready", [False, True])
def test_what_is_served_is_all_that_was_not_taken(waiting: int, *, ready: bool) -> None:
    """Interrupted or not, one call returns what waits, what runs and what has finished before."""
    ours, right = both()
    first = Request(id=9, prompt=(7,), params=Params(max_new=1))
    begun: tuple[Action, ...] = (act.Submit(first), act.Admit()) if ready else ()
    for action in begun:
        right.apply(action)
        ours.apply(action)
    for request in REQUESTS[:waiting]:
        right.apply(act.Submit(request))
        ours.apply(act.Submit(request))

    served = ours.serve(REQUESTS[waiting:])

    assert list(right.serve(REQUESTS[waiting:])) == sorted(served, key=lambda one: one[:2])
    assert right.observe().counts == ours.observe().counts
    assert right.observe().outputs == ours.observe().outputs
    assert statistics(right, right) == statistics(ours, right)


FULL = tuple(act.Reserve(slot) for slot in range(SIZES.slots))
"""No slot is left for a request that waits."""
QUEUED = (
    act.Reserve(0),
    act.Assign(0, (1, 2), Params(max_new=3), 8),
    act.Allocate(((0, 0),)),
    act.Enqueue(0, 5),
)
"""A token waits, and no round can be done before the allocated cell is written."""


@pytest.mark.parametrize(("begun", "requests"), [(FULL, REQUESTS[:1]), (QUEUED, ())])
@pytest.mark.parametrize("wrong", [None, (), (Refusal(Reason.STOPS, 1, 1),)])
def test_a_stall_is_told_with_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    begun: tuple[Action, ...],
    requests: tuple[Request, ...],
    wrong: tuple[Refusal, ...] | None,
) -> None:
    """A host that names nothing, or something else, fails, also where it serves the rest."""
    engines = [Ours(*GIVEN, observed=True) for _ in range(2)]
    for ours in engines:
        for action in (*begun, *map(act.Submit, requests)):
            ours.apply(action)
    if wrong is not None:
        monkeypatch.setattr(Host, "_obstacles", lambda *_: wrong)

    for serve in (partial(engines[0].serve, ()), engines[1]._served_on):
        if wrong is None:
            assert () == serve()
        else:
            with pytest.raises(EngineFailed, match="it stalls for"):
                serve()
