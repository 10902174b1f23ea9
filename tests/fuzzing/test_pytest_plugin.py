"""The conformance suite as tests of pytest: one answer for each clause, and no false pass."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest
import toy_engine
from deep import deep_after

from conformance.fuzzing import suite
from conformance.fuzzing.suite import COVERAGE, Answer, Where, judge, read_known
from conformance.lockstep.watchdog import Watchdog
from conformance.protocol import Action, EngineFailed, Factory, Result
from spec.clauses import CLAUSES
from spec.machines.actions import Allocate
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Limits

ROOT = Path(suite.__file__).parents[2]
SIZES = Geometry(pages=8, slots=3, page_size=2, pages_per_seq=4)
LEAK = """\
# this list is kept by hand
CONS a release keeps the last block
RC the same
"""
PARTS = (
    "CONS: counts[15] is 1, should be 0",
    "3. Free(slot=0)",
    "before:",
    "page 15 ",
    "the same step violates RC",
    "again: kvspec rerun --trust .kvspec/corpus/cons_",
)
"""Of what a failure shows."""
JUDGED = {"CONS", "UAF", "RC", "ROW", "SHARE", "WX", "ATOMIC", "DET"}
"""The clauses that can be judged on the toy."""


def run_pytest(*words: str, folder: Path, **more: str) -> tuple[int, str]:
    """The status and the output of pytest on the toy, in this folder."""
    installed = any(entry.name == "kvspec" for entry in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "kvspec.pytest_plugin")
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "tools")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "-v", "-rA",
         "--kvspec-engine", "toy_engine:make", "--kvspec-seconds", "1", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": path, "COLUMNS": "300", **more},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def answers(factory: Factory, *known: str, seconds: float) -> dict[str, Answer]:
    """The answers of the suite about an engine."""
    with Watchdog(lambda *_: None) as watchdog:
        where = Where(engine="toy_engine:make", python=None, in_process=False)
        return judge(
            where, geometry=SIZES, alone=False, seconds=seconds, seed=0,
            known=frozenset(known), watchdog=watchdog, factory=factory,
        )  # fmt: skip


def named(given: dict[str, Answer], *, holds: bool | None) -> set[str]:
    """The clauses with this answer."""
    return {name for name, answer in given.items() if answer.holds is holds}


class LeaksAndRaises(toy_engine.Adapter):
    """Two bugs: one at every release, one at batches of four."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.allocator.bug = "leak"

    def apply(self, action: Action) -> Result:
        """The action of the toy, or the second bug."""
        if isinstance(action, Allocate) and len(action.batch) == 4:
            raise EngineFailed("block table overflow")
        return super().apply(action)


def test_a_violated_clause_fails_with_its_history(tmp_path: Path) -> None:
    """Output and JUnit have the steps, the pages and the command, and no other clause passes."""
    status, text = run_pytest("--junitxml", "j.xml", folder=tmp_path, TOY_BUG="leak")
    cases = {
        case.get("name"): case for case in ElementTree.parse(tmp_path / "j.xml").iter("testcase")
    }
    failures = {name: case.find("failure") for name, case in cases.items()}
    failed = {name for name, found in failures.items() if found is not None}
    skipped = {name for name, case in cases.items() if case.find("skipped") is not None}

    assert 1 == status
    assert {*CLAUSES, COVERAGE} == set(cases)
    assert ({"CONS", "RC"}, {*CLAUSES, COVERAGE} - {"CONS", "RC"}) == (failed, skipped)
    shown = failures["CONS"]
    assert shown is not None
    for part in PARTS:
        assert part in text
        assert part in (shown.text or "")
    assert "kvspec::fuzz::ROW SKIPPED (undecided: the run ended at CONS" in text
    assert "kvspec.fuzz" == cases["ROW"].get("classname")
    assert list((tmp_path / ".kvspec" / "corpus").glob("cons_*.jsonl"))


def test_what_is_listed_fails_as_expected_and_hides_nothing(tmp_path: Path) -> None:
    """The run goes on after known findings; judged clauses hold, and the others are skipped."""
    (tmp_path / "known.txt").write_text(f"{LEAK}{COVERAGE} leaks end histories early\n")
    status, text = run_pytest("--kvspec-xfail", "known.txt", folder=tmp_path, TOY_BUG="leak")

    assert 0 == status, text
    for name in JUDGED - {"CONS", "RC"}:
        assert f"PASSED kvspec::fuzz::{name}" in text
    assert "XFAIL kvspec::fuzz::CONS - a release keeps the last block" in text
    assert (
        "kvspec::fuzz::CONTENT SKIPPED (not checked: the engine does not show tokens, cells)"
        in text
    )
    assert len(CLAUSES) - len(JUDGED) == text.count(" SKIPPED (not checked: ")


@pytest.mark.deep
def test_a_step_may_take_as_long_as_is_said(tmp_path: Path) -> None:
    """A hang is a failure of PROG, and a meaningless time is bad usage."""
    words = ("--kvspec-hang-seconds", "1.5", "-k", "PROG", "--kvspec-in-process")
    ends_early = ("--kvspec-seconds", "60")
    status, text = run_pytest(*words, *ends_early, folder=tmp_path, TOY_BUG="hangs")
    assert 1 == status, text
    assert "PROG: a step took more than 1.5 seconds" in text

    status, text = run_pytest("--kvspec-hang-seconds", "0", folder=tmp_path)
    assert (4, True) == (status, "saw 0.0, allowed: a finite number, more than 0" in text)


def test_an_entry_of_the_list_that_holds_fails(tmp_path: Path) -> None:
    """A listed clause that holds is reported as an unexpected pass."""
    (tmp_path / "known.txt").write_text(f"ROW not any more\n{COVERAGE} one second is short\n")
    status, text = run_pytest("--kvspec-xfail", "known.txt", "-k", "ROW", folder=tmp_path)

    assert (1, True) == (status, "[XPASS(strict)] not any more" in text)
    assert "kvspec::fuzz::CONS" not in text


def test_a_run_that_reached_too_little_decides_nothing() -> None:
    """No clause holds after too short a run, and COVERAGE fails."""
    short = answers(toy_engine.make, seconds=0.1)

    assert {COVERAGE} == named(short, holds=False)
    assert set() == named(short, holds=True)
    assert "required items were not reached in" in short[COVERAGE].why
    assert all("undecided: " in short[name].why for name in JUDGED)
    assert JUDGED == named(answers(toy_engine.make, COVERAGE, seconds=0.1), holds=True)


def test_a_second_bug_is_found_behind_a_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clause that is known to fail does not hide another: that one ends the run."""
    monkeypatch.chdir(tmp_path)
    first = answers(LeaksAndRaises, seconds=30)
    then = answers(LeaksAndRaises, "CONS", "RC", seconds=30)

    assert {"CONS", "RC"} == named(first, holds=False)
    assert {"CONS", "RC", "ATOMIC"} == named(then, holds=False)
    assert "block table overflow" in then["ATOMIC"].why
    assert "undecided: the run ended at ATOMIC; fix it or list it as known" == then["ROW"].why


def test_only_one_of_two_clauses_that_a_step_violates_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list without RC does not cover a leak, which is a wrong count as well."""
    monkeypatch.chdir(tmp_path)

    assert {"CONS", "RC"} == named(answers(LeaksAndRaises, "CONS", seconds=30), holds=False)


@pytest.mark.parametrize(
    ("words", "part"),
    deep_after(
        1,
        [
            (("--kvspec-engine", "nope"), "saw 'nope', allowed: MODULE:FACTORY"),
            (("-n", "2"), "allowed: one process"),
        ],
    ),
)
def test_wrong_usage_is_told(tmp_path: Path, words: tuple[str, ...], part: str) -> None:
    """Options that pytest cannot use are an error of usage, and no test passes."""
    status, text = run_pytest(*words, folder=tmp_path)

    assert (4, True) == (status, part in text), text


ENDS = """
import os
import toy_engine

class Exits(toy_engine.Adapter):
    def apply(self, action):
        os._exit(0)

"""


@pytest.mark.parametrize("where", deep_after(1, [((),), (("--kvspec-in-process",),)]))
def test_an_engine_that_exits_does_not_end_the_tests(
    tmp_path: Path, where: tuple[str, ...]
) -> None:
    """An exit in the engine's own process is a finding; in the kit's process every clause fails."""
    (tmp_path / "ends.py").write_text(ENDS)
    (tmp_path / "known.txt").write_text("ATOMIC it exits\n")
    known = ("--kvspec-xfail", "known.txt") if where else ()
    status, text = run_pytest("--kvspec-engine", "ends:Exits", *where, *known, folder=tmp_path)

    assert 1 == status, text
    assert "FAILED kvspec::fuzz::ATOMIC" in text
    if where:
        assert f"{len(CLAUSES) + 1} failed" in text
        assert "the suite's process ended with status 0 without answers" in text
    else:
        assert "the engine's process ended with status 0" in text


def test_foreign_packages_are_told_in_one_line(tmp_path: Path) -> None:
    """A foreign package is named in one line with the option, and does no harm without it."""
    (tmp_path / "foreign" / "conformance").mkdir(parents=True)
    (tmp_path / "foreign" / "conformance" / "__init__.py").write_text("raise ValueError")
    (tmp_path / "test_one.py").write_text("def test_one(): pass")
    for words, wanted in (((), 0), (("--kvspec-engine", "toy_engine:make"), 4)):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "foreign")},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        text = done.stdout + done.stderr
        assert wanted == done.returncode, text
        assert "INTERNALERROR" not in text
        assert bool(wanted) == ("the package conformance is not kvspec's" in text)


@pytest.mark.parametrize("text", ["NOPE why", "CONS", "CONS  ", "CONS one\nCONS two", "\xff"])
def test_a_list_that_says_too_little_is_bad_input(tmp_path: Path, text: str) -> None:
    """An unknown clause, one without a reason, one listed twice, and a binary file are refused."""
    path = tmp_path / "known.txt"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(InvalidInput, match="a clause and the reason"):
        read_known(path)


def test_a_list_is_read(tmp_path: Path) -> None:
    """Comments and empty lines are skipped."""
    (tmp_path / "known.txt").write_text(f"{LEAK}\n  \nDET  of old \n")

    wanted = {"CONS": "a release keeps the last block", "RC": "the same", "DET": "of old"}
    assert wanted == read_known(tmp_path / "known.txt")
