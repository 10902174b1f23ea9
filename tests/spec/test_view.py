"""Views: the forms in which an adapter may give the fields, and what is refused."""

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from spec_tools import geometry

from spec import ladder
from spec.fields import BY_NAME, entries
from spec.machines.actions import Assign, Reserve
from spec.view import View, of
from spec.vocabulary import (
    INVALID,
    Capacity,
    CleanupMode,
    FinishReason,
    InvalidInput,
    Params,
    default_limits,
)

SIZES = geometry(pages=4, page_size=1, slots=2, pages_per_seq=2)
PAGES = (INVALID, INVALID)


def view(**given: Any) -> View:
    """A view of two slots in which nothing is used, but for what is given."""
    return View(
        **{
            "geometry": SIZES,
            "counts": None,
            "used": (False, False),
            "rows": (PAGES, PAGES),
            **given,
        }
    )


@pytest.mark.parametrize(
    "given",
    [[1, 0], (True, False), [True, 0], np.array([1, 0]), np.array([True, False]), iter([1, 0])],
)
def test_flags_have_many_forms(given: Any) -> None:
    """They come to booleans."""
    shown = view(used=given).used

    assert (True, False) == shown
    assert [bool, bool] == [type(one) for one in shown]


@pytest.mark.parametrize("given", [[1, 2], [0, -1], "10", b"10", {0, 1}, {0: 1, 1: 0}, [None, 1]])
def test_other_values_are_no_flags(given: Any) -> None:
    """Neither other numbers, nor text and sets, which have no entry for each slot in order."""
    with pytest.raises(InvalidInput, match=r"View\.used: saw"):
        view(used=given)


@pytest.mark.parametrize("given", ["12", b"12", {1, 2}, {1: 1, 2: 2}, [1.5, 2]])
def test_what_is_not_a_list_of_integers_is_refused(given: Any) -> None:
    """Text, sets and mappings are iterable, and still no lists."""
    with pytest.raises(InvalidInput, match=r"View\.allocated: saw"):
        view(allocated=given)


@pytest.mark.parametrize(
    "rows", [[[3], []], [(3,), ()], ([3], list(PAGES)), np.array([[3], [INVALID]]), ((3,), PAGES)]
)
def test_short_rows_are_as_long_as_all_others(rows: Any) -> None:
    """What is left out at the end of a row is no page."""
    assert ((3, INVALID), PAGES) == view(rows=rows).rows


def test_a_field_has_an_entry_for_each_slot_page_or_cell() -> None:
    """One too few is refused, with their number."""
    for wrong in ({"used": (True,)}, {"counts": (0,) * 3}, {"cells": (None,) * 5}):
        (name,) = wrong
        with pytest.raises(InvalidInput, match=f"View.{name}: saw '[135] entries'"):
            view(**wrong)


def test_cells_can_be_compared() -> None:
    """Arrays become tuples, and what can be compared stays as it is."""
    plain = (1, (2,), "text", None)
    arrays = [np.array([1, 2]), [3], (4,), 5]

    assert view(cells=plain).cells is plain
    assert ((1, 2), (3,), (4,), 5) == view(cells=arrays).cells
    assert (0, 1, 2, 3) == view(cells=np.arange(4)).cells
    for first in (None, 1, "text", (2,), [2], np.array([2])):
        shown = view(cells=[first, None, 5, [6]]).cells
        assert shown is not None
        assert (5, (6,)) == shown[2:]


def test_a_row_is_recorded_up_to_its_last_page() -> None:
    """A hole before that is an error, and is kept to be seen."""
    record = BY_NAME["rows"].to_record

    assert [(3,), (), (INVALID, 2)] == [record(row) for row in ((3, INVALID), PAGES, (INVALID, 2))]


def test_outputs_have_a_reason() -> None:
    """It is given by itself or by its word."""
    (shown,) = view(outputs=[[4, 0, np.array([1, 2]), "limit"]]).outputs or ()

    assert (4, 0, (1, 2), FinishReason.LIMIT) == shown


@pytest.mark.parametrize("given", [[(1, 2)], [(1, 2, 3, 4)], [(1, 0, 0), ()]])
def test_a_queued_token_has_three_numbers(given: Any) -> None:
    """The token, its slot and its position."""
    with pytest.raises(InvalidInput, match=r"View\.queue: saw"):
        view(queue=given)
    assert ((1, 0, 2),) == view(queue=[[1, 0, 2]]).queue


def test_every_view_of_an_engine_has_the_same_fields() -> None:
    """What is shown once is shown always."""
    view(counts=(0,) * 4).require_same_fields(view(counts=(1,) * 4))
    for one, other in ((None, (0,) * 4), ((0,) * 4, None)):
        with pytest.raises(InvalidInput, match=r"View\.counts: saw 'shown in one view and None"):
            view(counts=one).require_same_fields(view(counts=other))


def test_entries_are_found_by_index() -> None:
    """A field without an index has one entry."""
    assert {0: "a", 1: "b"} == entries(BY_NAME["written"], ("a", "b"))
    assert {0: ("a", "b")} == entries(BY_NAME["queue"], ("a", "b"))


def test_an_unused_slot_has_nothing_reserved() -> None:
    """The view has the reserved cells of each slot, and none at all without the policy."""
    machine, sizes = ladder.machine("lifecycle"), evolve(SIZES, pages_per_seq=4)
    for capacity, wanted in ((Capacity(reserve="request"), (3, 0)), (Capacity(), ())):
        state = machine.initial(sizes, default_limits(sizes), CleanupMode.NONE, capacity)
        state = machine.step(state, Reserve(0))
        state = machine.step(state, Assign(0, (1, 2), Params(max_new=1), request=0))
        assert wanted == of(machine, state).reserved
