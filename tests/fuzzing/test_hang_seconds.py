"""A step that never ends is a finding after `--hang-seconds`, whatever the engine is doing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.lockstep import watchdog
from conformance.lockstep.watchdog import FIRST_SECONDS, Patience, patience_of
from spec.vocabulary import InvalidInput

ROOT = Path(watchdog.__file__).parents[2]
PROGRAM = """
import sys
from conformance.lockstep import watchdog
from conformance.cli.main import main
watchdog.FIRST_SECONDS, watchdog.GRACE_SECONDS = 3.0, 0.5
sys.exit(main(sys.argv[1:]))
"""
"""The command, with less time for a warm-up."""
SHORT = ("--hang-seconds", "1.5", "--json", "r.json")
COMPILED = "PROG: a step does not return from compiled code"
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,260
2023-11-16 18:15:50.9951690,396,301
2023-11-16 18:15:51.2224670,879,55
"""


def kvspec(*words: str, folder: Path) -> tuple[int, str, dict[str, Any]]:
    """The status, the output and the result of a command, which is killed if it does not end."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "tools")))
    (folder / "r.json").unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    found = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    return done.returncode, done.stdout + done.stderr, found


def served(engine: str, folder: Path) -> tuple[int, str, dict[str, Any]]:
    """A replay of a trace with this engine."""
    (folder / "t.csv").write_text(TRACE, encoding="utf-8")
    name = f"hanging_engines:{engine}"
    words = ("replay", "t.csv", "--format", "azure", "--engine", name, "--in-process")
    return kvspec(*words, *SHORT, folder=folder)


@pytest.mark.deep
def test_a_hang_in_python_is_a_finding_and_is_shrunk(tmp_path: Path) -> None:
    """A hang in Python is a finding, and its message says how long a step may take."""
    words = ("fuzz", "--engine", "hanging_engines:Sleeps", *SHORT)
    status, text, found = kvspec(*words, "--in-process", folder=tmp_path)

    assert 1 == status, text
    [failure] = found["failures"]
    assert failure.startswith("PROG: a step took more than 1.5 seconds (after 1 step, at pages=16,")


@pytest.mark.deep
@pytest.mark.parametrize("engine", ["Sleeps", "Deadlocks"])
def test_a_hang_in_a_process_of_its_own_is_shrunk(engine: str, tmp_path: Path) -> None:
    """A process that hangs in compiled code is ended, and the next one has time to warm up."""
    words = ("fuzz", "--engine", f"hanging_engines:{engine}", *SHORT)
    status, text, found = kvspec(*words, folder=tmp_path)

    assert 1 == status, text
    (failure,) = found["failures"]
    assert failure.startswith("PROG: a step took more than ")
    assert "seconds (after 1 step, at pages=16," in failure


def test_a_hang_in_compiled_code_is_a_finding_now_and_later(tmp_path: Path) -> None:
    """The counts are in the result, and later runs and a rerun end at the same hang."""
    words = ("fuzz", "--engine", "hanging_engines:Deadlocks", "--in-process", *SHORT)
    status, text, found = kvspec(*words, folder=tmp_path)
    assert 1 == status, text
    assert found["failures"][0].startswith(COMPILED)
    assert 0 < found["actions_taken"]

    status, text, later = kvspec(*words, folder=tmp_path)
    assert 1 == status, text
    assert later["failures"][0].startswith(f"{found['counterexample']}: {COMPILED}")
    status, text, again = kvspec(
        "rerun", "--trust", found["counterexample"], *SHORT, folder=tmp_path
    )
    assert 1 == status, text
    assert again["failures"][0].startswith(COMPILED)


def test_of_two_engines_the_one_that_hangs_is_named(tmp_path: Path) -> None:
    """The engine that hangs is named, and the other is not."""
    words = ("diff", "toy_engine:make", "hanging_engines:Deadlocks", "--in-process", *SHORT)
    status, text, found = kvspec(*words, folder=tmp_path)

    assert (1, "B") == (status, found["at_fault"]), text
    assert found["failures"][0].startswith(COMPILED)


def test_an_engine_that_hangs_in_a_replay_is_a_finding(tmp_path: Path) -> None:
    """The history is saved without shrinking, which a replay does not do."""
    status, text, found = served("ServesNoMore", tmp_path)

    assert 1 == status, text
    assert found["failures"][0].startswith(COMPILED)
    assert found["steps"] == found["shrunk_steps"]
    assert Path(tmp_path, found["counterexample"]).is_file()


def test_a_hang_while_shrinking_does_not_cost_what_was_found(tmp_path: Path) -> None:
    """The first finding is saved unshrunk if a step hangs while it is shrunk."""
    status, text, found = served("RaisesOrDeadlocks", tmp_path)

    assert 1 == status, text
    assert found["failures"][0].startswith("ATOMIC: no such page")
    assert found["steps"] == found["shrunk_steps"]


def test_more_patience_is_for_the_warm_up_too_and_less_is_not() -> None:
    """A longer limit holds for the warm-up too, and a shorter one does not."""
    assert Patience(step=2.0, first=FIRST_SECONDS) == patience_of(2.0)
    assert Patience(step=90.0, first=90.0) == patience_of(90.0)
    assert Patience() == patience_of(watchdog.STEP_SECONDS)


def test_another_process_has_to_compile_again() -> None:
    """After a hang there is a new process, in which a step of a shorter history may take longer."""
    patience = patience_of(2.0)

    assert 2.0 == patience.after_warm_up(here=True, warm_up=5.0)
    assert 7.0 == patience.after_warm_up(here=False, warm_up=5.0)
    assert 2.0 + FIRST_SECONDS == patience.after_warm_up(here=False, warm_up=500.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_patience_that_means_nothing_is_refused(seconds: float) -> None:
    """The message has the value seen and the allowed values."""
    with pytest.raises(InvalidInput, match=f"saw {seconds}, allowed: a finite number"):
        patience_of(seconds)
