"""Every field of every action and of the vocabulary refuses what no state could accept, by name.

The classes and their fields are listed by the modules themselves, and what is hostile follows from
the type of a field: a new class, or a new field without a check, fails here.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import attrs
import pytest
from spec_tools import MACHINE, geometry, limits, machine

from spec import ladder, vocabulary
from spec.machines import actions, naive
from spec.machines.actions import Allocate, Clone, Free, Name, Reserve, Write
from spec.table import Batch
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    InvalidInput,
    Params,
    Reason,
    Refusal,
    Refused,
    Request,
    ResetMode,
    Tokens,
    default_limits,
    refused,
)
from spec.vocabulary.capacity import Copy, Reservation
from spec.vocabulary.rules import Rule

PARAMS = Params(max_new=1)
Chunks = tuple[tuple[int, int], ...]
REQUEST = Request(id=0, prompt=(1,), params=PARAMS)
GOOD: dict[Any, Any] = {
    int: 1,
    int | None: None,
    float: 0.5,
    Name: 1,
    Name | None: None,
    Tokens: (0, 2**31 - 1),
    tuple[Tokens, ...]: ((1,),),
    Batch: ((0, 0), None),
    Chunks: ((0, 1),),
    Params: PARAMS,
    Request: REQUEST,
    tuple[Request, ...]: (REQUEST,),
    ResetMode: ResetMode.PHYSICAL,
    Reason: Reason.TOO_LONG,
    Copy: "lazy",
    Reservation: "request",
    object: "anything",
}
"""One value for each type of field."""
NO_INTEGER: tuple[Any, ...] = (True, False, 1.0, 1.5, "1", b"1", [], (), (1,), {}, 1j, object())
NO_NAME: tuple[Any, ...] = (
    True,
    1.5,
    "1",
    [],
    [1, 2],
    (1,),
    (1, 2, 3),
    (1, True),
    (1, None),
    {1: 2},
)
NO_TOKENS = (None, 1, "1", [1], {1}, (-1,), (True,), (1.0,), (2**31,), ("1",), (None,), ((1,),))
NO_BATCH: tuple[Any, ...] = (
    *(None, 1, "1", [], [(0, 0)], (0, 0), ((0,),), ((0, 0, 0),), ([0, 0],), ("00",)),
    *(((0, True),), ((None, 0),), ((0, 0), (0.0, 1))),
)
HOSTILE: dict[Any, tuple[Any, ...]] = {
    int: (None, *NO_INTEGER),
    int | None: NO_INTEGER,
    float: (None, True, "1", [], 1j, float("nan"), float("inf"), -1.0),
    Name: (None, *NO_NAME),
    Name | None: NO_NAME,
    Tokens: NO_TOKENS,
    tuple[Tokens, ...]: (None, 1, "1", [(1,)], (1,), ((),), *((wrong,) for wrong in NO_TOKENS)),
    Batch: NO_BATCH,
    Chunks: (*NO_BATCH, (None,), ((0, 1), None)),
    Params: (None, 1, {}, Params, REQUEST),
    Request: (None, 1, {}, Request, PARAMS),
    tuple[Request, ...]: (None, REQUEST, [REQUEST], (None,), (PARAMS,), "1"),
    ResetMode: (None, "logical", 1, ResetMode, CleanupMode.NONE),
    Reason: (None, 1, "TOO_LONG", Reason),
    Copy: (None, 1, "lasy", True, ["lazy"], ("eager", "lazy")),
    Reservation: (None, 1, "requests", True, ["request"], ("none", "request")),
    object: (),
}
"""Values that a field of a type must refuse. A field of type object may have any value."""
BEYOND = {
    "Assign.request": (-1, 2**31, 10**30),
    "Assign.choice": (-1, 2**31),
    "Assign.prompt": ((),),
    "Clone.choice": (-1, 2**31),
    "Enqueue.token": (-1, 2**31),
    "Sample.draw": (-1, 2**32),
    "Request.prompt": ((),),
}
"""Values of the right type that the field refuses."""
WITHOUT_BOUND = {"slot", "parent", "child"}
"""Integers that a state refuses: any is accepted here."""


def classes() -> Iterator[type]:
    """Every attrs class of the actions and of the vocabulary."""
    parts = pkgutil.iter_modules(vocabulary.__path__, "spec.vocabulary.")
    modules: list[ModuleType] = [actions, *(importlib.import_module(part.name) for part in parts)]
    for module in modules:
        for found in vars(module).values():
            mine = isinstance(found, type) and found.__module__ == module.__name__
            if mine and attrs.has(found) and found is not Rule:
                yield found


def fields() -> Iterator[tuple[Any, "attrs.Attribute[Any]"]]:
    """Every field of them, with its class."""
    for cls in classes():
        yield from ((cls, attribute) for attribute in attrs.fields(cls))


def good(cls: Any) -> dict[str, Any]:
    """Arguments that a class accepts."""
    return {field.name: GOOD[field.type] for field in attrs.fields(cls)}


CASES = [
    pytest.param(cls, field.name, wrong, id=f"{cls.__name__}.{field.name}-{number}")
    for cls, field in fields()
    for number, wrong in enumerate(
        (*HOSTILE[field.type], *BEYOND.get(f"{cls.__name__}.{field.name}", ()))
    )
]


@pytest.mark.parametrize(("cls", "name", "wrong"), CASES)
def test_a_field_refuses_what_it_cannot_be(cls: Any, name: str, wrong: object) -> None:
    """The error names class and field, and carries the value; the other fields are good."""
    arguments = good(cls)
    cls(**arguments)

    with pytest.raises(InvalidInput) as caught:
        cls(**{**arguments, name: wrong})

    assert f"{cls.__name__}.{name}" == caught.value.name
    assert wrong is caught.value.seen
    assert all((caught.value.allowed, caught.value.remedy))


def test_every_class_is_looked_at() -> None:
    """The list has the classes that were checked by hand, so it is not empty by accident."""
    names = {cls.__name__ for cls in classes()}

    assert {"Reserve", "Clone", "Prefill", "Submit", "Geometry", "Limits", "Refusal"} <= names


def test_an_integer_has_bounds_unless_a_state_refuses_it() -> None:
    """A negative number is accepted by the fields that name a slot, and by no other."""
    unbounded = set()
    for cls, field in fields():
        if field.type in {int, int | None, Name, Name | None}:
            try:
                cls(**{**good(cls), field.name: -1})
            except InvalidInput:
                continue
            unbounded.add(field.name)

    assert unbounded == WITHOUT_BOUND


@pytest.mark.parametrize("slot", [-1, 2, 99, 2**31 - 1, 2**40, 10**30])
def test_a_slot_out_of_range_is_refused_by_the_machine(slot: int) -> None:
    """A machine refuses a slot out of range with SLOT_RANGE, however large the number."""
    state = machine(geometry(pages=4, page_size=2, slots=2, pages_per_seq=3))
    entry = ((slot, 0),)
    for action in (Reserve(slot), Free(slot), Clone(0, slot, 1), Allocate(entry), Write(entry)):
        reasons = {refusal.reason for refusal in MACHINE.refusals(state, action)}
        assert reasons == {Reason.SLOT_RANGE}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("prompt", (wrong, PARAMS)) for wrong in (*NO_TOKENS, ())),
        *(("params", ((1,), wrong)) for wrong in HOSTILE[Params]),
        *(("choice", ((1,), PARAMS, wrong)) for wrong in (*HOSTILE[int], -1, 2**31)),
    ],
)
def test_naive_decoding_refuses_what_it_cannot_be(name: str, arguments: tuple[Any, ...]) -> None:
    """Naive decoding names the argument that it refuses."""
    with pytest.raises(InvalidInput, match=f"^{name}: saw"):
        naive.generate(*arguments)


@pytest.mark.parametrize("wrong", [None, 1, "1", PARAMS])
def test_what_is_built_for_sizes_refuses_other_things(wrong: Any) -> None:
    """An error about sizes, limits or the cleanup mode names the argument."""
    sizes = geometry(pages=4, page_size=2, slots=2, pages_per_seq=3)
    given = limits(sizes)
    with pytest.raises(InvalidInput, match=r"^geometry: saw"):
        MACHINE.initial(wrong, given)
    with pytest.raises(InvalidInput, match=r"^limits: saw"):
        MACHINE.initial(sizes, wrong)
    with pytest.raises(InvalidInput, match=r"^cleanup: saw"):
        MACHINE.initial(sizes, given, wrong)
    with pytest.raises(InvalidInput, match=r"^capacity: saw"):
        MACHINE.initial(sizes, given, CleanupMode.NONE, wrong)
    with pytest.raises(InvalidInput, match=r"^capacity: saw"):
        REQUEST.pages_needed(sizes, wrong)
    for use in (default_limits, given.check, REQUEST.pages_needed):
        with pytest.raises(InvalidInput, match=r"^geometry: saw"):
            use(wrong)


def test_a_refusal_without_a_reason_is_none() -> None:
    """A Refused exception without refusals cannot be made."""
    with pytest.raises(InvalidInput, match=r"refusals: saw \[\]"):
        refused([])
    assert Reason.TOO_LONG in refused([Refusal(Reason.TOO_LONG, 1, 0)]).reasons


def test_nothing_names_a_text_that_naive_decoding_would_have_to_choose() -> None:
    """Only a machine with slots takes the lowest free slot."""
    machine = ladder.machine("naive")
    sizes = Geometry(pages=1, page_size=1, slots=1, pages_per_seq=1)
    with pytest.raises(Refused, match="SLOT_RANGE: saw None, allowed the name of a text"):
        machine.step(machine.initial(sizes, default_limits(sizes)), Reserve())
