"""Histories with one change: the judges refuse exactly those that the specification refuses."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve

from conformance.mutation import histories
from conformance.mutation.histories import (
    Count,
    passes,
    recordings,
    recordings_judged,
    still_legal,
    vectors,
    vectors_judged,
)
from conformance.recordings.format import Line
from conformance.recordings.judge import Judge
from conformance.vectors import play
from conformance.vectors.build import Vector
from conformance.vectors.suites import suites
from spec.vocabulary import Reason


@pytest.fixture(scope="module")
def some() -> list[Vector]:
    """The vectors of the rung rollback, which has one slot."""
    return vectors([suite for suite in suites() if suite.name == "rollback"])


def right(found: Count) -> bool:
    """Whether a judge was right about every history, of both kinds."""
    assert found.illegal > 20
    assert found.legal > 5
    return (0, 0, []) == (found.passed, found.spoiled, found.examples)


@pytest.mark.deep
def test_recordings_of_a_table_are_judged_rightly_by_both_judges() -> None:
    """The fast table and the specification refuse each illegal one and accept each legal one."""
    judges = recordings_judged(120, 1, table=True)

    assert ["validate, by the fast table", "the specification"] == list(judges)
    assert all(map(right, judges.values()))


@pytest.mark.deep
def test_wrong_vectors_fail_the_right_engine(some: list[Vector]) -> None:
    """Our engine fails each wrong vector, unless it gives a reason that is still named."""
    found = vectors_judged(some, 150, 1)

    assert right(found["our engine"])
    assert found["our engine, other reasons of a refusal"].passed < 15


@pytest.mark.deep
def test_a_judge_that_forgets_a_comparison_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that compares no field accepts illegal histories, and they are counted and told."""
    take = Judge.take

    def blind(judge: Judge, line: Line) -> None:
        take(evolve(judge, header=evolve(judge.header, shows=())), line._replace(saw={}))

    monkeypatch.setattr(Judge, "take", blind)
    found = recordings_judged(60, 1, table=True)["validate, by the fast table"]

    assert found.passed == len(found.examples) > 0
    assert 0 == found.spoiled


@pytest.mark.deep
def test_a_player_that_forgets_a_field_is_noticed(
    some: list[Vector], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A player that compares no field passes wrong vectors."""
    monkeypatch.setattr(play, "_field_difference", lambda *_: None)

    assert vectors_judged(some, 60, 1)["our engine"].passed > 0


def test_the_number_of_free_pages_of_a_vector_is_compared(some: list[Vector]) -> None:
    """A vector that shows another number of free pages than its counts say fails."""
    vector = next(one for one in some if any("free" in line.saw for line in one.lines))
    lines: Sequence[Line] = [
        line._replace(saw={**line.saw, "free": {0: 7}}) if "free" in line.saw else line
        for line in vector.lines
    ]

    assert passes(vector)
    assert not passes(evolve(vector, lines=tuple(lines)))


def test_the_specification_decides_what_is_legal() -> None:
    """A history is legal as recorded; not with a wrong reason, result or value, or none shown."""
    history = next(recordings(0, table=True))
    lines = list(history.lines)
    refused = next(index for index, line in enumerate(lines) if line.refused)
    done = next(index for index, line in enumerate(lines) if "counts" in line.saw)

    def legal(index: int, line: Line) -> bool:
        return still_legal(history.header, [*lines[:index], line, *lines[index + 1 :]])

    assert still_legal(history.header, lines)
    assert not legal(refused, lines[refused]._replace(refused=frozenset({Reason.NEVER_FITS})))
    assert not legal(refused, lines[refused]._replace(refused=None))
    assert not legal(done, lines[done]._replace(saw={}))
    assert not legal(done, lines[done]._replace(refused=frozenset()))


def test_the_page_has_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command writes the table that it prints, unless a judge is wrong: then it fails."""
    monkeypatch.setattr(histories, "vectors", lambda _: [])
    monkeypatch.setattr(histories, "vectors_judged", lambda *_: {"our engine": Count(legal=3)})
    page = tmp_path / "page.md"

    assert 0 == histories.main(["--count", "10", "--write", str(page)])
    assert "| vectors | our engine | 0 | 0 | 0 | 3 | 3 |" in page.read_text()
    wrong = Count(illegal=1, passed=1, examples=["line 3: tokens 1 -> 2"])
    monkeypatch.setattr(histories, "vectors_judged", lambda *_: {"our engine": wrong})
    page.unlink()
    assert 1 == histories.main(["--count", "10", "--write", str(page)])
    assert not page.exists()


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("legal", [True, False, None])
def test_a_judge_is_right_only_if_it_accepts_what_is_legal(
    *, legal: bool | None, accepted: bool
) -> None:
    """Each history counts once, and a judge that accepts or refuses it wrongly has an example."""
    count = Count()

    count.add(legal=legal, accepted=accepted, told="it")

    assert (legal is None, legal is False, legal is True) == (
        count.malformed,
        count.illegal,
        count.legal,
    )
    passed, spoiled = accepted and not legal, legal is True and not accepted
    assert (passed, spoiled) == (count.passed, count.spoiled)
    assert ["it"] * (passed or spoiled) == count.examples
