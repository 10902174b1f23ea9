"""Differential testing: blame for a violation, and the legal differences between two engines."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import remote_engines
import toy_engine
from spec_engine import Recompiles, SpecEngine, small

from conformance.cli.main import main
from conformance.files import histories
from conformance.fuzzing import campaign
from conformance.fuzzing.shrinking import shrink_difference
from conformance.lockstep.differential import PAGES, REASONS, REFUSES, Differences, PairFactory
from conformance.protocol import (
    Action,
    Attends,
    Compiles,
    Copies,
    Factory,
    Poison,
    Poisonable,
    Result,
)
from spec.machines import actions as act
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    Limits,
    Reason,
    Refusal,
    Refused,
    default_limits,
    refused,
)

SIZES = small(pages=6, page_size=2, slots=3, pages_per_seq=4)
TOY = "toy_engine:make"


class SaysOther(toy_engine.Adapter):
    """A toy that refuses a slot out of range with the reason SLOT_UNUSED."""

    def apply(self, action: Action) -> Result:
        """The result of the toy, with the reason of a refusal changed."""
        try:
            return super().apply(action)
        except Refused as no:
            if isinstance(action, act.Free) and Reason.SLOT_RANGE in no.reasons:
                raise refused([Refusal(Reason.SLOT_UNUSED, None, None)]) from None
            raise


class Careless(SpecEngine):
    """The specification, with attention that reads one cell too many."""

    def attend(self) -> Any:
        """The read sets, each with one more cell."""
        return {slot: {**cells, 99: 1} for slot, cells in super().attend().items()}


class Miscounts(SpecEngine):
    """The specification, with one sequence too many in its statistics."""

    def statistics(self) -> dict[str, object]:
        """The statistics, one of them wrong."""
        return {**super().statistics(), "active": 99}


class Misscores(SpecEngine):
    """The specification, with log-probabilities above those of its tokens."""

    def logprobs(self) -> tuple[tuple[float, ...], ...]:
        """A log-probability of each token, too large by 1."""
        return tuple(tuple(one + 1 for one in held) for held in super().logprobs())


class Keeps(SpecEngine):
    """The specification, which shows another state after each physical reset."""

    def erased(self) -> object:
        """Another state at each call."""
        return object()


def run(a: Factory, b: Factory, *, turns: int = 4) -> tuple[PairFactory, campaign.Run]:
    """Fuzz a pair of engines for some turns."""
    pairs, report = PairFactory(a, b), campaign.Run()
    campaign.run(
        pairs,
        campaign.Options(geometry=SIZES, seconds=60, steps=turns * 100, ceiling=False),
        report=report,
        update=lambda *_: None,
    )
    return pairs, report


def test_two_of_one_kind_do_not_differ() -> None:
    """The same engine twice shows no difference."""
    pairs, report = run(toy_engine.make, toy_engine.make)

    assert (None, {}) == (report.finding, dict(pairs.seen.counts))
    assert 200 < report.steps


def test_other_pages_are_legal_and_shown_at_their_shortest() -> None:
    """Lowest page first and highest page first differ after two steps, and both are legal."""
    pairs, report = run(SpecEngine, toy_engine.make)

    assert None is report.finding
    assert {PAGES, REASONS} >= set(pairs.seen.counts) >= {PAGES}
    assert (act.Reserve(), act.Allocate(((0, 0),))) == shrink_difference(pairs, PAGES)


def test_refusing_more_is_legal_where_it_is_declared_and_then_they_part() -> None:
    """After one engine has refused an action that the other took, they are no longer compared."""
    pairs, report = run(toy_engine.make, remote_engines.Shy)

    assert None is report.finding
    assert pairs.seen.counts[REFUSES]
    *_, last = shrink_difference(pairs, REFUSES)
    assert isinstance(last, act.Allocate)


def test_other_words_for_a_refusal_are_legal_if_both_hold() -> None:
    """An engine that refuses for another reason that also holds differs legally."""

    class Both(SpecEngine):
        """The specification, which refuses with the last of its reasons alone."""

        def apply(self, action: Action) -> Result:
            """Take an action, and name one reason if it is refused."""
            try:
                return super().apply(action)
            except Refused as no:
                raise refused([no.refusals[-1]]) from None

    pairs, report = run(SpecEngine, Both, turns=8)

    assert (None, {REASONS}) == (report.finding, set(pairs.seen.counts))


@pytest.mark.parametrize(
    ("wrong", "clause"),
    [
        (remote_engines.Leaks, "CONS"),
        (SaysOther, "ATOMIC"),
        (Careless, "READ"),
        (Miscounts, "STAT"),
        pytest.param(Misscores, "ALONE", marks=pytest.mark.deep),
        (Keeps, "RESET"),
    ],
)
def test_a_violation_has_an_owner(wrong: Factory, clause: str) -> None:
    """The engine that goes wrong is blamed, as A and as B."""
    is_whole = isinstance(wrong, type) and issubclass(wrong, SpecEngine)
    right = SpecEngine if is_whole else toy_engine.make
    for a, b, fault in ((right, wrong, "B"), (wrong, right, "A")):
        pairs, report = run(a, b, turns=20)

        assert report.finding is not None
        assert (clause, fault) == (report.finding.clause, pairs.seen.fault)
        assert wrong is pairs.at_fault


def test_an_exception_or_a_second_making_has_an_owner() -> None:
    """An engine that cannot be made is blamed, as A and as B."""
    limits = default_limits(SIZES)

    def broken(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> toy_engine.Adapter:
        raise IndexError(f"no pool for {geometry}, {limits}, {cleanup}")

    right: Factory = toy_engine.make
    for a, b, fault in ((broken, right, "A"), (right, broken, "B")):
        pairs = PairFactory(a, b)
        with pytest.raises(IndexError):
            pairs(SIZES, limits, CleanupMode.NONE)
        assert fault == pairs.seen.fault


def test_a_pair_can_be_poisoned_and_driven_as_its_engines_can() -> None:
    """A pair has the optional methods that its engines offer, and no others."""
    limits = default_limits(SIZES)
    poisoned: list[Poison] = []

    class Noted(SpecEngine):
        """A specification that records each call of `poison`."""

        def poison(self, kind: Poison) -> None:
            """Record the call."""
            poisoned.append(kind)

    class Compiled(SpecEngine):
        """A specification that says that it compiles."""

        def compilations(self) -> dict[str, int]:
            """One entry point."""
            return {"write": 1}

    def pair(a: Factory, b: Factory) -> Any:
        return PairFactory(a, b, Differences())(SIZES, limits, CleanupMode.NONE)

    plain, mixed = pair(toy_engine.make, toy_engine.make), pair(toy_engine.make, Noted)
    assert not isinstance(plain, Poisonable | Attends | Compiles)
    assert toy_engine.OFFERED == mixed.profile.actions
    mixed.poison(Poison.NAN)
    assert [Poison.NAN] == poisoned
    assert not isinstance(mixed, Attends)
    assert isinstance(pair(SpecEngine, Noted), Attends)
    compiling = pair(toy_engine.make, Compiled)
    assert {"B: write": 1} == compiling.compilations()
    assert not isinstance(compiling, Copies)
    copying = pair(Recompiles, toy_engine.make)
    assert {"A: round": ("copy of a whole pool",)} == copying.pool_copies()


def test_the_command_names_the_one_that_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of a finding names only the engine that went wrong, and its Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "tools"))
    words = ("remote_engines:Leaks", "--python-b", sys.executable, "--seconds", "20")

    assert 1 == main(["diff", TOY, *words, "--json", "d.json"])
    found = json.loads(Path("d.json").read_text(encoding="utf-8"))
    kept = histories.load(Path(found["counterexample"]))
    assert ("B", "CONS", "diff") == (found["at_fault"], kept.clause, found["command"])
    assert ("remote_engines:Leaks", sys.executable) == (kept.engine, kept.python)
    assert "B goes wrong: remote_engines:Leaks" in capsys.readouterr().out
    assert 1 == main(["rerun", "--trust", found["counterexample"]])


def test_the_command_lists_legal_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Legal differences do not fail the command, and each engine lists its unchecked clauses."""
    monkeypatch.chdir(tmp_path)
    words = ["diff", "spec_engine:SpecEngine", TOY, "--seconds", "3", "--json", "d.json"]
    status = main([*words, "--not-checked"])
    found, text = json.loads(Path("d.json").read_text(encoding="utf-8")), capsys.readouterr().out

    assert status in {0, 3}
    assert {PAGES, REASONS} >= set(found["differences"]) >= {PAGES}
    assert f"legal: {PAGES}" in text
    assert "    2. Allocate(batch=((0, 0),))\n" in text
    assert "not checked: B: CONTENT: the engine does not show tokens, cells" in text
    assert "not checked: A: CONTENT" not in text
