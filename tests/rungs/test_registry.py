"""The registries of rungs, of their records and of fields agree; a test names what a rung lacks.

Each check is a function of the registries; the last tests plant a violation for each of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pytest
from attrs import evolve, frozen

from conformance.rungs import registry
from conformance.rungs.record import RungKit
from spec import fields, ladder
from spec.clauses import CLAUSES
from spec.fields import Field
from spec.machines.actions import Clone, Commit, Propose, Submit
from spec.rung import Meet, Rung
from spec.state import State
from spec.view import View
from spec.vocabulary import Reason

CONFIGURATION = {"geometry", "limits", "cleanup", "capacity"}
"""Components that no action changes, and that no rung owns."""
GIVEN = {"geometry", "expected", "capacity", "reserved"}
"""Attributes of a view that an engine does not show."""


@frozen(kw_only=True)
class Registries:
    """Everything that is registered. rungs: of the ladder. whole: the rungs that need a record."""

    rungs: Sequence[Rung] = ladder.RUNGS
    whole: Sequence[str] = ladder.whole().names
    kits: Sequence[RungKit] = registry.KITS
    fields: Sequence[Field] = fields.FIELDS


Check = Callable[[Registries], Iterator[str]]


def records(held: Registries) -> Iterator[str]:
    """Rungs of the whole machine without a record, records of no such rung, and a wrong order."""
    named = [kit.rung for kit in held.kits]
    yield from (f"{name} has no record" for name in held.whole if name not in named)
    yield from (f"the record {name} is of no rung" for name in named if name not in held.whole)
    if sorted(named) == sorted(held.whole) and named != list(held.whole):
        yield f"the records are in the order {', '.join(named)}"


def entries(held: Registries) -> Iterator[str]:
    """Actions of a rung without an entry in its record, and entries of no action of it."""
    rules = {rung.name: rung.rules for rung in held.rungs}
    for kit in held.kits:
        adds = rules.get(kit.rung, {})
        yield from (
            f"{kit.rung} has no entry for {kind.__name__}" for kind in adds.keys() - kit.actions
        )
        yield from (
            f"{kit.rung} does not add {kind.__name__}" for kind in kit.actions.keys() - adds
        )


def pairs(held: Registries) -> Iterator[str]:
    """Earlier rungs that a rung does not say how it meets, and entries of no earlier rung."""
    for at, rung in enumerate(held.rungs):
        earlier = [other.name for other in held.rungs[:at]]
        yield from (
            f"{rung.name} does not say how it meets {name}"
            for name in earlier
            if name not in rung.meets
        )
        yield from (
            f"{rung.name} meets {name}, which is no earlier rung"
            for name in rung.meets
            if name not in earlier
        )


def meets(held: Registries) -> Iterator[str]:
    """Pairs that meet in an unknown clause, or in an item that coverage cannot count."""
    counted = countable(held.kits)
    for rung in held.rungs:
        for name, pair in rung.meets.items():
            if pair == "independent":
                continue
            assert isinstance(pair, Meet)
            where = f"{rung.name} meets {name} in"
            if pair.clause not in CLAUSES:
                yield f"{where} the clause {pair.clause}, which is none"
            if pair.corner not in counted:
                yield f"{where} {pair.corner!r}, which coverage cannot count"


def countable(kits: Sequence[RungKit]) -> set[str]:
    """The items of coverage: corners, and actions with their outcomes."""
    outcomes = {
        f"{kind.__name__}: {outcome}"
        for kit in kits
        for kind in kit.actions
        for outcome in ("done", *Reason.__members__)
    }
    return outcomes | {corner for kit in kits for corner in kit.corners}


def independent(held: Registries) -> Iterator[str]:
    """Pairs of one machine that are declared independent, and hook into each other's actions."""
    by_name = {rung.name: rung for rung in held.rungs if rung.name in held.whole}
    for rung in by_name.values():
        for name, pair in rung.meets.items():
            if pair == "independent" and name in by_name:
                yield from hooks(rung, by_name[name])
                yield from hooks(by_name[name], rung)


def hooks(one: Rung, other: Rung) -> Iterator[str]:
    """Guards and follows of one rung on the actions of another."""
    kinds: Mapping[str, Mapping[type, Any]] = {"guards": one.guards, "follows": one.follows}
    for word, found in kinds.items():
        for kind in found.keys() & other.rules.keys():
            yield f"{one.name} {word} {kind.__name__} of {other.name}, and they are independent"


def components(held: Registries) -> Iterator[str]:
    """Components of the state that not exactly one rung owns."""
    owned = [name for rung in held.rungs for name in rung.owns]
    for name in State._fields:
        if name not in CONFIGURATION and owned.count(name) != 1:
            yield f"{owned.count(name)} rungs own the component {name}"
    yield from (f"there is no component {name}" for name in owned if name not in State._fields)


def observed(held: Registries) -> Iterator[str]:
    """Fields of no rung, fields that the view lacks, and view attributes that are no field."""
    shown = {attribute.name for attribute in attrs.fields(View)} - GIVEN
    for field in held.fields:
        if field.owner not in {rung.name for rung in held.rungs}:
            yield f"the field {field.name} belongs to {field.owner}, which is no rung"
        if field.viewed and field.name not in shown:
            yield f"the view has no {field.name}"
    named = {field.name for field in held.fields if field.viewed}
    yield from (f"{name} of the view is no field" for name in sorted(shown - named))


def with_rung(name: str, **changed: Any) -> Registries:
    """The registries with one rung changed."""
    rungs = [evolve(rung, **changed) if rung.name == name else rung for rung in ladder.RUNGS]
    return Registries(rungs=rungs)


def with_kit(name: str, **changed: Any) -> Registries:
    """The registries with one record changed."""
    kits = [evolve(kit, **changed) if kit.rung == name else kit for kit in registry.KITS]
    return Registries(kits=kits)


def with_field(name: str, **changed: Any) -> Registries:
    """The registries with one field changed."""
    return Registries(
        fields=[
            evolve(field, **changed) if field.name == name else field for field in fields.FIELDS
        ]
    )


def rung(name: str) -> Rung:
    """A rung of the ladder."""
    return next(rung for rung in ladder.RUNGS if rung.name == name)


def kit(name: str) -> RungKit:
    """The record of a rung."""
    return next(kit for kit in registry.KITS if kit.rung == name)


def without(table: Mapping[Any, Any], key: object) -> dict[Any, Any]:
    """The table without one entry."""
    assert key in table
    return {other: value for other, value in table.items() if other != key}


@pytest.mark.parametrize(
    "check", [records, entries, pairs, meets, independent, components, observed]
)
def test_the_registries_agree(check: Check) -> None:
    """No rung lacks an entry, and no entry lacks a rung."""
    assert [] == list(check(Registries()))


@pytest.mark.parametrize(
    ("check", "planted", "named"),
    [
        (records, Registries(kits=registry.KITS[1:]), "pages has no record"),
        (
            records,
            Registries(kits=[*registry.KITS, evolve(kit("pages"), rung="ring")]),
            "the record ring is of no rung",
        ),
        (
            records,
            Registries(kits=registry.KITS[::-1]),
            f"the records are in the order {', '.join(ladder.whole().names[::-1])}",
        ),
        (
            entries,
            with_kit("rollback", actions=without(kit("rollback").actions, Commit)),
            "rollback has no entry for Commit",
        ),
        (
            entries,
            with_rung("rollback", rules=without(rung("rollback").rules, Propose)),
            "rollback does not add Propose",
        ),
        (
            pairs,
            with_rung("lifecycle", meets=without(rung("lifecycle").meets, "rollback")),
            "lifecycle does not say how it meets rollback",
        ),
        (
            pairs,
            with_rung("sharing", meets={**rung("sharing").meets, "ring": "independent"}),
            "sharing meets ring, which is no earlier rung",
        ),
        (
            meets,
            with_rung("sharing", meets={"pages": Meet("NONE", "Clone: done")}),
            "sharing meets pages in the clause NONE, which is none",
        ),
        (
            meets,
            with_rung("sharing", meets={"pages": Meet("RC", "clone at midnight")}),
            "sharing meets pages in 'clone at midnight', which coverage cannot count",
        ),
        (
            meets,
            with_rung("sharing", meets={"pages": Meet("RC", "Clone: NO_REASON")}),
            "sharing meets pages in 'Clone: NO_REASON', which coverage cannot count",
        ),
        (
            meets,
            with_kit(
                "rollback", corners=without(kit("rollback").corners, "truncate inside a page")
            ),
            "rollback meets pages in 'truncate inside a page', which coverage cannot count",
        ),
        (
            independent,
            with_rung(
                "admission",
                guards={Clone: ()},
                meets={"sharing": "independent"},
            ),
            "admission guards Clone of sharing, and they are independent",
        ),
        (
            independent,
            with_rung("rollback", follows={Submit: lambda *_: None}),
            "rollback follows Submit of admission, and they are independent",
        ),
        (
            components,
            with_rung("rollback", owns=("committed",)),
            "0 rungs own the component proposed",
        ),
        (components, with_rung("sharing", owns=("counts",)), "2 rungs own the component counts"),
        (components, with_rung("sharing", owns=("ring",)), "there is no component ring"),
        (
            observed,
            with_field("proposed", owner="ring"),
            "the field proposed belongs to ring, which is no rung",
        ),
        (observed, with_field("free", viewed=True), "the view has no free"),
        (observed, with_field("cells", viewed=False), "cells of the view is no field"),
    ],
)
def test_a_planted_violation_is_named(check: Check, planted: Registries, named: str) -> None:
    """The check of a violation names the rung and the missing entry."""
    assert named in list(check(planted))
