"""Guards left out of the engine one at a time: refinement notices, or it is explained."""

from types import SimpleNamespace

import pytest

from conformance.exploration.instances import PACKED, instance
from conformance.mutation import guards
from conformance.mutation.guards import EXPLAINED, Fate, driver_guards, noticed
from conformance.mutation.transitions import collected
from conformance.refinement.run import SMALL, Small
from spec.vocabulary import CleanupMode, Geometry

TINY: Small = (
    "lifecycle",
    Geometry(pages=1, slots=1, page_size=2, pages_per_seq=1),
    CleanupMode.INCREMENTAL,
)


def test_each_guard_of_an_entry_point_is_left_out_in_turn() -> None:
    """Without any one of its guards, assign is wrong somewhere; no other guard stands in for it."""
    found = noticed(collected(TINY), "assign")

    assert [
        "assign 0 SLOT_RANGE",
        "assign 1 SLOT_UNUSED",
        "assign 2 SLOT_ASSIGNED",
        "assign 3 TOO_LONG",
        "assign 4 CHOICE_TAKEN",
    ] == list(found)
    assert all(state is not None for name, state in found.items() if "CHOICE" not in name)


def test_a_guard_that_is_never_asked_for_is_not_noticed() -> None:
    """One slot has nobody to share a choice with, so that its guard survives, and is told."""
    assert noticed(collected(TINY), "assign")["assign 4 CHOICE_TAKEN"] is None


def test_the_guards_of_the_driver_are_left_out_too() -> None:
    """A batch that is too wide, or a stop sequence too many, does not fit the arrays of a call."""
    found = {
        guard: guards.driver_noticed(TINY, function, number)
        for function, number, guard in driver_guards()
    }

    assert {
        "driver: batch 0 BATCH_WIDTH": True,
        "driver: check_prefill 0 PREFILL_WIDTH": False,
        "driver: check_stops 0 STOPS": True,
        "driver: chunks 0 SLOT_RANGE": False,
        "driver: chunks 1 BATCH_POSITIONS": False,
    } == {guard: told is not None for guard, told in found.items()}
    chosen = instance("lifecycle", TINY[1])
    assert "allocate(wide)" in {move.name for move in chosen.moves}


def test_the_guards_of_chunks_are_left_out_too() -> None:
    """A chunk of no slot, and one of no token, have no place in the count of each slot."""
    small = ("chunks", TINY[1], TINY[2])
    found = [guards.driver_noticed(small, "chunks", number) for number in range(2)]

    assert [
        "mixed_round(1: 1) raises IndexError",
        "mixed_round(0: 0) is not refused as it must be",
    ] == [told and told.partition(": ")[2] for told in found]


def test_what_is_not_noticed_must_be_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A guard without which nothing fails needs an explanation; one that is noticed has none."""
    explained = [Fate(guard, None) for guard in EXPLAINED]

    def status(*more: Fate) -> int:
        monkeypatch.setattr(guards, "fates", lambda: [*explained, *more])
        return guards.main()

    assert 0 == status(Fate("one", "sharing, state 1"))
    assert 1 == status(Fate("one", None))
    assert "one: NOT noticed" in capsys.readouterr().out
    explained.pop()
    assert 1 == status()
    assert "explained, and noticed or gone" in capsys.readouterr().out


@pytest.mark.parametrize("where", [None, *range(len(guards.SCOPES))])
def test_any_graph_decides_whether_a_guard_is_noticed(
    monkeypatch: pytest.MonkeyPatch, where: int | None
) -> None:
    """A guard that a single graph notices is noticed there, whichever it is, state 0 included."""
    places = range(len(guards.SCOPES))
    graphs = iter([SimpleNamespace(name=f"graph {at}", held=("commit",)) for at in places])
    monkeypatch.setattr(guards, "collected", lambda *_, **__: next(graphs))
    found = {"one 0 TOO_LONG": 0, "two 0 TOO_LONG": 7}
    monkeypatch.setattr(
        guards,
        "noticed",
        lambda graph, _: found if graph.name == f"graph {where}" else dict.fromkeys(found),
    )
    monkeypatch.setattr(guards, "driver_guards", lambda: iter([("batch", 3, "driver: batch 3")]))
    layers = [small for small in SMALL if small[0] != PACKED]
    asked = iter([f"layer {at}" if at == where else None for at in range(len(layers))])
    monkeypatch.setattr(guards, "driver_noticed", lambda *_: next(asked))

    told = {one.guard: one.noticed for one in guards.fates()}

    assert {
        "commit: one 0 TOO_LONG": None if where is None else f"graph {where}, state 0",
        "commit: two 0 TOO_LONG": None if where is None else f"graph {where}, state 7",
        "driver: batch 3": f"layer {where}" if where in range(len(layers)) else None,
    } == told
