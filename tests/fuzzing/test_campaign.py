"""The report of a fuzzing run, and how the run keeps to its time."""

import json
import time
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve
from deep import deep_after
from spec_engine import ForgetsCompilations, Recompiles, SpecEngine, small

from conformance.cli import coverage
from conformance.cli.main import main
from conformance.fuzzing import campaign, state_machine, suite
from conformance.lockstep.watchdog import Watchdog
from conformance.protocol import Action, Result
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits

SLOW = 0.02
"""Seconds: many times what a draw, and what a step and its judging take, on a busy machine too."""


class Slow(SpecEngine):
    """The specification as an engine that is slow in one of its methods."""

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, where: str
    ) -> None:
        super().__init__(geometry, limits, cleanup)
        self._where = where

    def apply(self, action: Action) -> Result:
        """Late, or not."""
        time.sleep(SLOW * (self._where == "apply"))
        return super().apply(action)

    def observe(self) -> View:
        """Late, or not."""
        time.sleep(SLOW * (self._where == "observe"))
        return super().observe()


def late(drawn: int, *, seconds: float = SLOW) -> int:
    """The same draw, late."""
    time.sleep(seconds)
    return drawn


@pytest.mark.parametrize(
    ("where", "most"),
    deep_after(1, [("apply", "engine"), ("draw", "draws"), ("observe", "engine"), ("move", "kit")]),
)
def test_the_shares_of_the_time_are_told_apart(
    where: str, most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow part has the largest share, and the shares add up to 1."""
    monkeypatch.setattr(campaign, "EXAMPLES", 2)
    if where == "move":
        monkeypatch.setattr(state_machine, "spread", late)
    if where == "draw":
        monkeypatch.setattr(state_machine, "DRAWS", state_machine.DRAWS.map(late))
    report = campaign.Run()
    campaign.run(
        partial(Slow, where=where),
        campaign.Options(geometry=small(), seconds=60, steps=1, ceiling=False),
        report=report,
        update=lambda *_: None,
    )

    shares = report.shares
    assert most == max(shares, key=lambda part: shares[part])
    assert pytest.approx(1.0) == sum(shares.values())
    assert 0.0 < min(shares.values())


TURN = 6.0
"""Seconds: what a turn of a Slow engine takes at least if it is not ended."""


def timed(taken: list[Action], *, seconds: float, ceiling: bool = False) -> campaign.Run:
    """A run of an engine with turns of TURN seconds; `taken` gets the actions of all engines."""

    class Logged(SpecEngine):
        def apply(self, action: Action) -> Result:
            taken.append(action)
            time.sleep(TURN / campaign.EXAMPLES / campaign.STEPS)
            return super().apply(action)

    report = campaign.Run()
    campaign.run(
        Logged,
        campaign.Options(geometry=small(), seed=3, seconds=seconds, ceiling=ceiling),
        report=report,
        update=lambda *_: None,
    )
    assert None is report.finding
    return report


def test_a_turn_ends_when_the_time_is_up() -> None:
    """A longer run with the same seed, and with a ceiling, begins with the same steps."""
    short, long = list[Action](), list[Action]()
    report = timed(short, seconds=1.0)
    timed(long, seconds=2.5, ceiling=True)

    assert 0 < report.steps < campaign.EXAMPLES * campaign.STEPS
    assert 0.5 * TURN > report.active_seconds
    assert long[: len(short)] == short


def test_what_measures_the_ceiling_is_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns with empty bodies end when the time is up as well."""
    draws = state_machine.DRAWS.map(partial(late, seconds=0.005))
    monkeypatch.setattr(state_machine, "DRAWS", draws)
    monkeypatch.setattr(campaign, "EXAMPLES", 2)
    monkeypatch.setattr(campaign, "IDLE_EVERY", 1)
    started, report = time.perf_counter(), campaign.Run()
    campaign.run(
        SpecEngine,
        campaign.Options(geometry=small(), seconds=1.5),
        report=report,
        update=lambda *_: None,
    )

    assert report.idle is not None
    assert 0 < report.idle.steps
    assert 2.2 > report.active_seconds + report.idle.active_seconds
    assert 4.0 > time.perf_counter() - started


def test_the_command_keeps_to_its_time_and_names_what_it_did_not_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The unreached items are named in the last lines and in the result."""
    monkeypatch.chdir(tmp_path)
    started = time.perf_counter()
    status = main(["fuzz", "--seconds", "0.2", "--seed", "1", "--json", "r.json"])
    took = time.perf_counter() - started

    found = json.loads(Path("r.json").read_text(encoding="utf-8"))
    assert (3, "undecided") == (status, found["verdict"])
    assert 6.0 > took - found["left_out_seconds"]
    assert "page size 1" in found["not_covered"]
    before, last = capsys.readouterr().out.splitlines()[-2:]
    wanted = "  not checked: coverage that was not reached: " + coverage.named(found["not_covered"])
    assert wanted == before
    assert last.startswith("kvspec fuzz: undecided")


@pytest.mark.parametrize("isolated", deep_after(1, [((),), (("--in-process",),)]))
def test_bad_programs_fail_a_run_that_found_nothing_else(
    isolated: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry point that was compiled twice, or copies a pool, is named with its geometry."""
    monkeypatch.chdir(tmp_path)
    sizes = "pages=4,page_size=2,slots=2,pages_per_seq=2"
    words = ["fuzz", "--engine", "spec_engine:Recompiles", "--geometry", sizes, *isolated]

    assert 1 == main([*words, "--seconds", "3", "--json", "f.json"])

    wrong = json.loads(Path("f.json").read_text(encoding="utf-8"))["failures"]
    where = [f"{sizes} cleanup={cleanup.value}" for cleanup in CleanupMode]
    twice = "JIT: clone was compiled 2 times at {}, should be once"
    copying = "JIT: round copies a pool at {}: copy of a whole pool"
    told = [text.format(at) for at in where for text in (twice, copying)]
    assert told[:2] == wrong[:2]
    assert set(wrong) <= set(told)


def test_an_engine_that_does_not_tell_its_compilations_fails() -> None:
    """It is not taken for one that compiles nothing twice."""
    sizes = small(pages=4, page_size=2, slots=2, pages_per_seq=2)
    report = campaign.Run()
    options = campaign.Options(geometry=sizes, alone=True, steps=1, ceiling=False)
    campaign.run(ForgetsCompilations, options, report=report, update=lambda *_: None)

    assert report.finding is None
    assert all("the counters are gone" in one for one in report.programs)
    assert report.programs


def test_bad_programs_fail_the_clause_of_the_suite() -> None:
    """JIT fails with each of them, and the other clauses keep their answers."""
    where = suite.Where(engine="spec_engine:Recompiles", python=None, in_process=True)
    sizes = small(pages=4, page_size=2, slots=2, pages_per_seq=2)
    with Watchdog(lambda *_: None) as watchdog:
        answers = suite.judge(
            where,
            geometry=sizes,
            alone=True,
            seconds=2,
            seed=0,
            known=frozenset({suite.COVERAGE}),
            watchdog=watchdog,
            factory=Recompiles,
        )

    assert answers["JIT"].holds is False
    assert "clone was compiled 2 times" in answers["JIT"].why
    assert "round copies a pool" in answers["JIT"].why
    assert answers["RC"].holds


def test_nothing_is_asked_of_an_engine_after_its_failure() -> None:
    """The run ends at once: a repetition would say of two engines that the other one has failed."""
    asked: list[bool] = []

    class Fails(SpecEngine):
        """The specification, which shows other slots in use after one of its calls."""

        fails = False

        def apply(self, action: Action) -> Result:
            """Take an action, and note whether it is the one that fails, or comes later."""
            asked.append(len(asked) > 90)
            self.fails = sum(asked) == 1
            return super().apply(action)

        def observe(self) -> View:
            """The view, or a wrong one."""
            view = super().observe()
            others = tuple(not one for one in view.used)
            return evolve(view, used=others) if self.fails else view

    report = campaign.Run()
    options = campaign.Options(geometry=small(), steps=2000, ceiling=False)
    campaign.run(Fails, options, report=report, update=lambda *_: None)

    assert report.finding is not None
    assert [True] == [one for one in asked if one]
