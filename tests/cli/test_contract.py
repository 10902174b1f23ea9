"""The command line keeps one contract: verdicts, exit status, the JSON result, interruption."""

import argparse
import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest

from conformance.cli import main, options, result_json
from conformance.cli.contract import Command, Report, execute
from conformance.files import atomic
from conformance.verdict import Scope, Verdict
from spec import SPEC_VERSION
from spec.vocabulary.errors import InvalidInput

SIZES = "pages=16,slots=4,page_size=4,pages_per_seq=4"
Run = Callable[[argparse.Namespace, Report], Verdict]


def fake(run: Run) -> Command:
    """A command named `fake` with a geometry and an engine, whose work is `run`."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        options.add_geometry(parser, default=SIZES)
        options.add_engine(parser)

    return cast(
        "Command",
        types.SimpleNamespace(
            NAME="fake",
            HELP="pretends",
            EXAMPLES=("kvspec fake --seed 7",),
            add_arguments=add_arguments,
            run=run,
        ),
    )


def answering(verdict: Verdict) -> Command:
    """A fake command that counts three steps and returns this verdict."""

    def run(arguments: argparse.Namespace, report: Report) -> Verdict:
        del arguments
        report.scope = Scope.COMPLETE
        report.count(steps=3)
        report.skip("quarantine", why="the allocator lives on the device")
        return verdict

    return fake(run)


def raising(error: BaseException, *, failure: str | None = None) -> Command:
    """A fake command that does some work, perhaps records a failure, and raises."""

    def run(arguments: argparse.Namespace, report: Report) -> Verdict:
        del arguments
        report.count(steps=5)
        if failure is not None:
            report.fail(failure)
        raise error

    return fake(run)


def read(path: Path) -> dict[str, object]:
    """The JSON object in a file."""
    value = json.loads(path.read_text())
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    ("verdict", "status"),
    [(Verdict.HOLDS, 0), (Verdict.FAILS, 1), (Verdict.UNDECIDED, 3)],
)
def test_a_verdict_is_the_exit_status_and_the_result_says_all(
    tmp_path: Path, verdict: Verdict, status: int
) -> None:
    """The result file has every key of the contract and the counts of the command."""
    path = tmp_path / "out.json"

    assert status == execute(answering(verdict), ["--json", str(path), "--seed", "7"])
    found = read(path)
    assert 0 <= cast("float", found.pop("seconds")) < 60
    assert {
        "command": "fake",
        "verdict": verdict.value,
        "scope": "complete",
        "seed": 7,
        "geometry": {"pages": 16, "slots": 4, "page_size": 4, "pages_per_seq": 4},
        "spec_version": SPEC_VERSION,
        "not_checked": ["quarantine: the allocator lives on the device"],
        "failures": [],
        "interrupted": False,
        "error": None,
        "steps": 3,
    } == found
    assert {"seconds", "steps", *found} == {*result_json.KEYS, "steps"}


@pytest.mark.parametrize(
    ("verdict", "words", "shown"),
    [
        (Verdict.HOLDS, [], ["2 parts; --not-checked lists them, and --json FILE has them"]),
        (Verdict.FAILS, [], ["2 parts; --not-checked lists them, and --json FILE has them"]),
        (Verdict.UNDECIDED, [], ["one: hidden", "two: hidden"]),
        (Verdict.UNDECIDED, ["--quiet"], ["one: hidden", "two: hidden"]),
        (Verdict.HOLDS, ["--not-checked"], ["one: hidden", "two: hidden"]),
        (Verdict.HOLDS, ["--not-checked", "--quiet"], []),
    ],
)
def test_parts_that_are_not_checked_do_not_bury_the_verdict(
    verdict: Verdict,
    words: list[str],
    shown: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line has their number; an undecided run and --not-checked list them, and so does JSON."""

    def run(_arguments: argparse.Namespace, report: Report) -> Verdict:
        for part in ("one", "two"):
            report.skip(part, why="hidden")
        return verdict

    execute(fake(run), [*words, "--json", str(tmp_path / "r.json")])
    lines = capsys.readouterr().out.splitlines()

    assert [f"  not checked: {line}" for line in shown] == lines[:-1]
    assert lines[-1].startswith(f"kvspec fake: {verdict.value} ")
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert ["one: hidden", "two: hidden"] == found["not_checked"]


def test_the_summary_ends_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary lists counts and unchecked parts before the verdict, and --quiet omits them."""
    execute(answering(Verdict.HOLDS), [])
    lines = capsys.readouterr().out.splitlines()
    execute(answering(Verdict.HOLDS), ["--quiet"])
    quiet = capsys.readouterr().out.splitlines()

    assert ["  steps: 3", "  not checked: quarantine: the allocator lives on the device"] == lines[
        :2
    ]
    assert lines[2].startswith("kvspec fake: holds (complete) in ")
    assert 1 == len(quiet)
    assert quiet[0].startswith("kvspec fake: holds")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--nonsense"], ["unrecognized arguments: --nonsense", "kvspec fake --help"]),
        (["--see", "7"], ["unrecognized arguments"]),
        (["--seed", "x"], ["--seed", "'x'", "0 to 2147483647"]),
        (["--seed", "-1"], ["--seed"]),
        (["--seed", "2147483648"], ["--seed", "0 to 2147483647"]),
        (["--geometry", "pages=16"], ["--geometry", "'pages=16'", "pages_per_seq"]),
        (["--geometry", SIZES.replace("16", "1" * 5000)], ["--geometry", "each once and as NAME"]),
        (["--geometry", SIZES.replace("16", "0")], ["Geometry.pages", "saw 0"]),
        (["--json", "/proc/out.json"], ["--json: saw /proc/out.json"]),
        (["--json", "."], ["--json: saw .: a folder", "Name another"]),
        (["--json", "x" * 300], ["--json: saw xxx", "File name too long"]),
        (["--json", "new/" + "x" * 300], ["--json: saw new/xxx", "300 bytes, more than 255"]),
        (["--json", "a\0b"], ["--json", "embedded null"]),
    ],
)
def test_bad_usage_is_one_line_and_2(
    words: list[str],
    parts: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Bad usage is one line of stderr, with the value seen and the values allowed."""
    monkeypatch.chdir(tmp_path)

    assert 2 == execute(answering(Verdict.HOLDS), words)
    out, err = capsys.readouterr()
    assert "" == out
    assert 1 == err.count("\n")
    assert err.startswith("kvspec fake: ")
    assert [] == [part for part in parts if part not in err]


def test_bad_input_is_one_line_and_2_and_an_older_result_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input is one line of stderr, and an earlier result file stays."""
    path = tmp_path / "out.json"
    path.write_text("older")
    error = InvalidInput("trace,\nline 3", seen="x", allowed="y", remedy="Repair.")

    assert 2 == execute(raising(error), ["--json", str(path)])
    assert "kvspec fake: trace, line 3: saw 'x', allowed: y. Repair.\n" == capsys.readouterr().err
    assert [path] == list(tmp_path.iterdir())
    assert "older" == path.read_text()


@pytest.mark.parametrize(
    ("error", "interrupted"),
    [
        (KeyboardInterrupt(), True),
        (ZeroDivisionError("ours"), False),
        (SystemExit(0), False),
        (InvalidInput("row", seen=1, allowed="2", remedy=""), False),
    ],
)
def test_a_recorded_failure_wins_over_what_stops_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, *, interrupted: bool
) -> None:
    """After a failure the verdict is `fails`, whatever exception stops the command."""
    path = tmp_path / "out.json"

    assert 1 == execute(raising(error, failure="RC at step 4"), ["--json", str(path)])
    found = read(path)
    assert ("fails", interrupted, ["RC at step 4"]) == (
        found["verdict"],
        found["interrupted"],
        found["failures"],
    )
    assert "FAILS: RC at step 4\n" in capsys.readouterr().out


def test_ctrl_c_leaves_the_verdict_undecided_and_the_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C without a failure is undecided, and the counts so far are printed and written."""
    path = tmp_path / "out.json"

    assert 3 == execute(raising(KeyboardInterrupt()), ["--json", str(path)])
    found = read(path)
    assert ("undecided", True, 5) == (found["verdict"], found["interrupted"], found["steps"])
    assert "interrupted" in capsys.readouterr().out.splitlines()[-1]


def test_ctrl_c_while_the_result_is_written_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the result is written is ignored, so that the result is complete."""
    path, write = tmp_path / "out.json", atomic.write

    def slow(*given: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        write(*given)

    monkeypatch.setattr(atomic, "write", slow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert 3 == execute(raising(KeyboardInterrupt()), ["--json", str(path)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert read(path)["interrupted"]


def test_an_error_in_the_place_of_an_interrupt_is_one(tmp_path: Path) -> None:
    """An exception that replaces a KeyboardInterrupt still counts as an interruption."""
    path = tmp_path / "out.json"

    def run(_arguments: argparse.Namespace, _report: Report) -> Verdict:
        try:
            raise KeyboardInterrupt
        finally:
            assert _report is None

    assert 3 == execute(fake(run), ["--json", str(path)])
    assert (True, None) == (read(path)["interrupted"], read(path)["error"])


def test_an_error_of_ours_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An internal error is undecided and shows its traceback; it is no failure of the engine."""
    path = tmp_path / "out.json"

    assert 3 == execute(raising(SystemExit(0)), [])
    assert 3 == execute(raising(ZeroDivisionError("ours")), ["--json", str(path)])
    assert "ZeroDivisionError: ours" == read(path)["error"]
    assert "Traceback" in capsys.readouterr().err


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A missing module of an extra is bad usage with a remedy; any other is an internal error."""
    absent = ModuleNotFoundError("No module named 'jax.numpy'", name="jax.numpy")
    unknown = ModuleNotFoundError("No module named 'x'", name="x")

    assert 2 == execute(raising(absent), [])
    assert "this needs kvspec[jax]" in capsys.readouterr().err
    assert 3 == execute(raising(unknown), [])


def test_a_real_interrupt_is_reported(tmp_path: Path) -> None:
    """SIGINT to a running process gives status 3 and a complete result file."""
    path = tmp_path / "out.json"
    script = (
        "import signal, sys, time, types\n"
        "from conformance.cli.contract import execute\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        "def run(arguments, report):\n"
        "    report.count(steps=9)\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "fake = types.SimpleNamespace(NAME='fake', HELP='', EXAMPLES=(), run=run,\n"
        "                             add_arguments=lambda parser: None)\n"
        f"sys.exit(execute(fake, ['--json', {str(path)!r}]))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
        process.send_signal(signal.SIGINT)

        assert 3 == process.wait(timeout=30)
    assert (True, 9) == (read(path)["interrupted"], read(path)["steps"])


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of a command shows its examples and options, and succeeds."""
    assert 0 == execute(answering(Verdict.HOLDS), ["--help"])
    out = capsys.readouterr().out
    assert [] == [
        part
        for part in ("kvspec fake --seed 7", "--geometry", "--engine", "--json", "3 not decided")
        if part not in out
    ]


def test_the_listing_has_a_line_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`kvspec --help` lists the commands, and a call without a command names them as bad usage."""
    assert 0 == main.main(["--help"])
    out = capsys.readouterr().out
    assert list(main.COMMANDS) == [
        line.split()[0] for line in out.splitlines() if line.startswith("  ")
    ]

    assert 2 == main.main([])
    err = capsys.readouterr().err
    assert 1 == err.count("\n")
    assert ", ".join(main.COMMANDS) in err


def test_the_version_is_that_of_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    """`kvspec --version` names the distribution's version and the specification's."""
    assert 0 == main.main(["--version"])
    assert f"kvspec {metadata.version('kvspec')}, specification {SPEC_VERSION}\n" == (
        capsys.readouterr().out
    )


def test_an_unknown_command_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    """The error for an unknown command lists the known ones."""
    assert 2 == main.main(["fuss"])
    assert "saw 'fuss', allowed: fuzz, " in capsys.readouterr().err


def test_a_command_that_is_not_installed_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command whose module is missing is listed as such, and fails if it is invoked."""
    monkeypatch.setattr(main, "COMMANDS", ("absent_here", "doctor"))

    assert 0 == main.main(["--help"])
    assert "absent_here not part of this installation" in capsys.readouterr().out
    assert 2 == main.main(["absent_here"])
    assert "absent_here is not part of this installation" in capsys.readouterr().err


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_looks_like_one(name: str) -> None:
    """A command has a name, one line of help, and examples that start with its name."""
    command = main._load(name)

    assert command is not None
    assert name == command.NAME
    assert 0 < len(command.HELP) < 80
    assert [] == [line for line in command.EXAMPLES if not line.startswith(f"kvspec {name}")]
    assert len(command.EXAMPLES) >= 1


@pytest.mark.parametrize(
    ("installed", "platforms", "device", "only_compiles"),
    [
        (True, None, None, True),
        (False, None, None, False),
        (True, "tpu", None, False),
        (True, None, "accel0", False),
        (True, None, "vfio/0", False),
        (True, None, "nvidia0", False),
        (True, None, "kfd", False),
        (True, None, "vfio/vfio", True),
    ],
)
def test_jax_is_kept_on_the_cpu_only_where_libtpu_just_compiles(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    installed: bool,
    platforms: str | None,
    device: str | None,
    only_compiles: bool,
) -> None:
    """A choice by JAX_PLATFORMS and an accelerator among the devices are both respected."""
    (tmp_path / "vfio").mkdir()
    if device is not None:
        (tmp_path / device).touch()
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if platforms is not None:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object() if installed else None)

    assert only_compiles == main.libtpu_only_compiles(tmp_path)


@pytest.mark.parametrize(
    ("command", "found", "platforms"),
    [("nothing", True, "cpu"), ("nothing", False, None), ("doctor", True, None)],
)
def test_the_command_keeps_jax_on_the_cpu_but_lets_doctor_ask(
    command: str, found: object, platforms: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX_PLATFORMS is set where libtpu only compiles, except for `doctor`, which lists devices."""
    monkeypatch.setenv("JAX_PLATFORMS", "")  # so that monkeypatch restores it at the end
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(main, "libtpu_only_compiles", lambda: found)

    assert main.main([command, "--no-such-option"]) == 2
    assert os.environ.get("JAX_PLATFORMS") == platforms
