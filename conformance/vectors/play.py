"""An adapter through a vector: it does what the recording says, or where it first does not.

What any engine in any language does with a vector. Only the fields that the adapter shows are
compared.
"""

from conformance.history import Attend, PoisonDead
from conformance.protocol import Engine
from conformance.recordings.answers import Found
from conformance.recordings.by_specification import BySpec
from conformance.recordings.fields import Fields, fields_of, plain_result
from conformance.recordings.format import Header, Line
from conformance.rungs.registry import clause_of
from conformance.vectors.build import Vector
from spec.fields import BY_NAME
from spec.vocabulary import Reason, Refused


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
        wrong = _answer(line, given, result) or _fields(
            line, _shown_of(engine, vector.header), wanted
        )
        if wrong is not None:
            return Found(number, *wrong)
    return None


Wrong = tuple[str, str, object, object]
"""The clause, what, the value seen, and the one expected."""


def _shown_of(engine: Engine, header: Header) -> Fields:
    """What the engine shows of the fields that the vector has."""
    shown = fields_of(engine.observe())
    return {name: entries for name, entries in shown.items() if name in header.shows}


def _answer(line: Line, given: frozenset[Reason] | None, result: object) -> Wrong | None:
    refused = line.refused or frozenset()
    if (given is None) != (not refused) or not (given or frozenset()) <= refused:
        return "ATOMIC", "the refusal", _names(given), _names(line.refused)
    if None not in (result, line.result) and result != line.result:
        return "DET", "the result", result, line.result
    return None


def _fields(line: Line, shown: Fields, wanted: Fields) -> Wrong | None:
    for field, values in shown.items():
        for index, seen in values.items():
            if seen != wanted[field][index]:
                clause = clause_of(line.step, BY_NAME[field].clause)
                return clause, f"{field}[{index}]", seen, wanted[field][index]
    return None


def _names(reasons: frozenset[Reason] | None) -> str:
    return "done" if reasons is None else ", ".join(sorted(one.name for one in reasons))
