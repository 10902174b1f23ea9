"""An adapter through a vector: it does what the recording says, or where it first does not.

What any engine in any language does with a vector. Only the fields that the adapter shows are
compared.
"""

from conformance.history import Attend, PoisonDead
from conformance.lockstep.comparer import (
    Difference,
    field_difference,
    refusal_difference,
    result_difference,
)
from conformance.protocol import Engine
from conformance.recordings.answers import Found
from conformance.recordings.by_specification import BySpec
from conformance.recordings.fields import Fields, fields_of, plain_result
from conformance.recordings.format import Header, Line
from conformance.vectors.build import Vector
from spec.vocabulary import Refused


def play(engine: Engine, vector: Vector) -> Found | None:
    """What is wrong first, with its line in the file; None if the engine passes.

    engine: made as the header says, in its initial state.
    """
    wanted = dict(BySpec(vector.header).fields)
    for number, line in enumerate(vector.lines, start=2):
        assert not isinstance(line.step, PoisonDead | Attend)
        given, result = None, None
        try:
            result = plain_result(engine.apply(line.step))
        except Refused as refused:
            given = refused.reasons
        wanted.update({field: {**wanted[field], **new} for field, new in line.saw.items()})
        wrong = (
            refusal_difference(given, line.refused or frozenset(), refuses="exact")
            or result_difference(line.step, result, () if line.result is None else [line.result])
            or _field_difference(line, _shown_of(engine, vector.header), wanted)
        )
        if wrong is not None:
            return Found(number, *wrong)
    return None


def _shown_of(engine: Engine, header: Header) -> Fields:
    """What the engine shows of the fields that the vector has."""
    shown = fields_of(engine.observe())
    return {name: entries for name, entries in shown.items() if name in header.shows}


def _field_difference(line: Line, shown: Fields, wanted: Fields) -> Difference | None:
    for field, values in shown.items():
        for index, seen in values.items():
            expected = wanted[field][index]
            found = field_difference(line.step, field, index, seen=seen, expected=expected)
            if found is not None:
                return found
    return None
