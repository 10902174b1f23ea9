"""Arguments of a wrong kind: our engine refuses each by its name, and one that does not is told."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import numpy as np
import pytest
from deep import deep_after
from spec_engine import small

from conformance.engines import ours as adapter
from conformance.engines.ours import ACTIONS, Ours
from conformance.engines.wrong_kinds import VALUES, replaced, wrong_values
from conformance.protocol import Action, EngineFailed
from impl import arguments
from impl.host import Host
from spec.machines import actions as act
from spec.vocabulary import (
    CleanupMode,
    InvalidInput,
    Params,
    Refused,
    Request,
    default_limits,
)
from spec.vocabulary.rules import SLOT

SIZES = small(pages=16, page_size=2, slots=4, pages_per_seq=4)
REQUEST = Request(id=1, prompt=(5, 6, 7), params=Params(max_new=4))
WITH_FIELDS: tuple[Action, ...] = (
    act.Reserve(1),
    act.Assign(1, (5,), REQUEST.params, request=4),
    act.Allocate(((1, 0),)),
    act.Write(((1, 0),)),
    act.Clone(1, 2, 1),
    act.Enqueue(1, 3),
    act.Purge(1),
    act.Propose(1, (3, 4)),
    act.Commit(1, 1),
    act.Truncate(1, 1),
    act.Release(1, 0),
    act.Publish(1, 1),
    act.Hit(1, 2),
    act.Share(0, 1, 2),
    act.MixedRound(((0, 2), (1, 1))),
    act.Dispatch(((0, 2), (1, 1))),
    act.Preempt(3),
    act.Replay(1, (1, 2)),
    act.Merge(1, 1),
    act.Evict((1, 2)),
    act.Free(2),
    act.Submit(REQUEST),
    act.Prefill((attrs.evolve(REQUEST, id=2),)),
    act.Reset(),
)


def wrong_of(action: Action) -> tuple[tuple[str, object], ...]:
    """The wrong values of its fields."""
    kind: type = type(action)
    return wrong_values(kind)


def told(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What is wrong with our engine, with every wrong value for every action that has fields."""
    engine, found = Ours(SIZES, default_limits(SIZES), CleanupMode.END, observed=True), set()
    for action in WITH_FIELDS:
        for name, value in wrong_of(action):
            monkeypatch.setattr(adapter, "wrong_values", lambda _, one=(name, value): (one,))
            try:
                engine._require_kinds(action, 0)
            except EngineFailed as failed:
                found.add(str(failed))
        with suppress(Refused, EngineFailed):
            engine.apply(action)
    return found


def test_every_action_with_fields_is_among_these() -> None:
    """A new action or field has wrong values, too."""
    assert {kind for kind in ACTIONS if attrs.fields(kind)} == {type(one) for one in WITH_FIELDS}
    for action in WITH_FIELDS:
        names = {name for name, _ in wrong_of(action)}
        assert names == {field.name for field in attrs.fields(type(action))}


def test_wrong_values_are_those_that_the_specification_refuses() -> None:
    """No value is both: an action takes each of the others."""
    for action in WITH_FIELDS:
        taken = (one for one in attrs.fields(type(action)))
        for field in taken:
            wrong = [value for name, value in wrong_of(action) if name == field.name]
            for value in VALUES:
                given = {one.name: getattr(action, one.name) for one in attrs.fields(type(action))}
                given[field.name] = value
                if any(value is one for one in wrong):
                    with pytest.raises(InvalidInput):
                        type(action)(**given)
                else:
                    assert value is getattr(type(action)(**given), field.name)


def test_a_replaced_field_leaves_the_action() -> None:
    """The action itself stays as it is."""
    before = act.Reserve(1)

    other = replaced(before, "slot", "x")

    assert (act.Reserve(1), "x") == (before, other.slot)  # type: ignore[union-attr]


def anything(_name: str, given: Any) -> np.int32:
    """A number, whatever it is."""
    return np.int32(int(given) % 2)


def the_other_name(given: Any, *, name: str = "slot") -> np.int32:
    """A slot, which is called `id` where it is none."""
    del name
    SLOT.require("id", given)
    return np.int32(given)


def queued_at_once(host: Host, request: Any) -> None:
    """Queue a request that nobody has looked at."""
    host._state = attrs.evolve(host._state, waiting=(*host._state.waiting, request))


@pytest.mark.parametrize(
    ("place", "name", "planted", "message"),
    deep_after(
        2,
        [
            (Host, "submit", queued_at_once, "with None as request, Submit is done"),
            (arguments, "number", anything, "with True as choice, Clone is done"),
            (arguments, "number", arguments.number, None),
            (arguments, "slot", the_other_name, "True as slot is refused as id"),
        ],
    ),
)
def test_an_argument_that_is_not_refused_by_its_name_is_told(
    place: object,
    name: str,
    planted: Callable[..., Any],
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our engine has nothing to tell, and each wrong check is told with value and name."""
    monkeypatch.setattr(place, name, planted)

    found = told(monkeypatch)

    assert message in found if message else not found
