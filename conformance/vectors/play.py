"""Playing a vector on an engine through its adapter, up to the first difference.

An engine in another language plays a vector in the same way. Only the fields that the adapter shows
are compared.
"""

from conformance.history import Attend, PoisonDead
from conformance.lockstep.comparer import (
    Difference,
    field_difference,
    refusal_difference,
    result_difference,
)
from conformance.protocol import Engine, EngineFailed
from conformance.recordings.answers import Found
from conformance.recordings.by_specification import BySpec
from conformance.recordings.fields import Fields, fields_of, plain_result
from conformance.recordings.format import Header, Line
from conformance.vectors.build import Vector
from spec import ladder
from spec.vocabulary import InvalidInput, Refused


def play(engine: Engine, vector: Vector) -> Found | None:
    """The first difference or failure, with its line in the file; None if the engine passes.

    engine: an engine with the header's geometry, limits and cleanup, in its initial state. Raises
    InvalidInput for one with another capacity policy than the header's.
    """
    if engine.profile.capacity != vector.header.capacity:
        raise InvalidInput(
            "Profile.capacity",
            seen=engine.profile.capacity,
            allowed=f"{vector.header.capacity}, that of the vector",
            remedy="Fuzz the engine instead; vectors have the standard policy.",
        )
    wanted = dict(BySpec(vector.header, ladder.whole()).fields)
    for number, line in enumerate(vector.lines, start=2):
        assert not isinstance(line.step, PoisonDead | Attend)
        given, result = None, None
        try:
            try:
                result = plain_result(engine.apply(line.step))
            except Refused as refused:
                given = refused.reasons
            shown = _shown_of(engine, vector.header)
        except EngineFailed as failed:
            return Found(number, failed.clause, "the engine", str(failed), "no failure")
        wanted.update({field: {**wanted[field], **new} for field, new in line.saw.items()})
        wrong = (
            refusal_difference(given, line.refused or frozenset(), refuses="exact")
            or result_difference(line.step, result, () if line.result is None else [line.result])
            or _field_difference(line, shown, wanted)
        )
        if wrong is not None:
            return Found(number, *wrong)
    return None


def _shown_of(engine: Engine, header: Header) -> Fields:
    """The fields that both the engine and the vector show, with the engine's values.

    No view shows how many pages are free: its counts say it.
    """
    shown = fields_of(engine.observe())
    if "counts" in shown:
        held = shown.get("held", {})
        free = (not count and not held.get(page) for page, count in shown["counts"].items())
        shown["free"] = {0: sum(free)}
    return {name: entries for name, entries in shown.items() if name in header.shows}


def _field_difference(line: Line, shown: Fields, wanted: Fields) -> Difference | None:
    for field, values in shown.items():
        for index, seen in values.items():
            expected = wanted[field][index]
            found = field_difference(line.step, field, index, seen=seen, expected=expected)
            if found is not None:
                return found
    return None
