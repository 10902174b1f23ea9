"""The oracles that are shown blind: what each says of a view, right or wrong."""

from collections.abc import Callable
from functools import partial

import pytest
from attrs import evolve
from spec_engine import small

from conformance.engines import ours
from conformance.finding import replay
from conformance.plants import planted
from conformance.plants.blind import BLIND
from conformance.plants.catalogue import PLANTS
from conformance.plants.methods import METHODS
from conformance.steps import History
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import INVALID, CleanupMode, Geometry, Params, default_limits

SIZES = small()
NONE = INVALID
RIGHT = View(
    geometry=Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2),
    counts=(1, 1, 1, 0),
    used=(True, True),
    rows=((0, 1), (2, NONE)),
)


def rows(*found: tuple[int, int]) -> Callable[[View], View]:
    """A view with other rows."""
    return lambda view: evolve(view, rows=found)


@pytest.mark.parametrize(
    ("name", "change", "clause"),
    [
        ("sums", rows((0, 0), (2, NONE)), None),
        ("sums", rows((0, NONE), (2, NONE)), "CONS"),
        ("negative", lambda view: evolve(view, counts=(2, 1, 1, 0)), None),
        ("negative", lambda view: evolve(view, counts=(1, 1, 1, -1)), "RC"),
        ("metadata", lambda view: evolve(view, cells=(None,) * 8, written=(1, 0)), None),
        ("metadata", lambda view: evolve(view, counts=(2, 1, 1, 0)), "RC"),
        ("renamed", rows((3, 1), (2, NONE)), None),
        ("renamed", rows((0, 0), (2, NONE)), "DET"),
        ("renamed", rows((0, NONE), (2, NONE)), "DET"),
    ],
)
def test_an_oracle_sees_what_it_looks_at(
    name: str, change: Callable[[View], View], clause: str | None
) -> None:
    """And nothing else."""
    judge = BLIND[name].judge
    found = [broken for broken, _ in judge(RIGHT, change(RIGHT), RIGHT)]

    assert [] == list(judge(RIGHT, RIGHT, RIGHT))
    assert ([clause] if clause else []) == found[:1]


def test_each_is_tried_at_two_plants() -> None:
    """The bug that it misses and the one it sees, and no other; `kvspec plant` runs them."""
    for name, oracle in BLIND.items():
        tried = {plant.id for plant in PLANTS.values() if METHODS[name].applies(name, plant)}
        assert {oracle.misses, oracle.sees} == tried


def test_one_of_them_is_blind() -> None:
    """The kit sees a row that moves without its K and V; who renames afresh does not."""
    batch = ((1, 0),)
    history: History = (
        *(act.Reserve(0), act.Reserve(1)),
        *(act.Assign(slot, (1,), Params(max_new=1), slot) for slot in range(2)),
        *(act.Allocate(((0, 0),)), act.Allocate(batch), act.Write(batch)),
        act.Free(0),
    )
    make = partial(ours.make, SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)

    with planted("DF1"):
        found = replay(make, history)
        assert found is not None
        assert "CONTENT" == found.clause
        assert None is replay(make, history, oracle=BLIND["renamed"].judge)
