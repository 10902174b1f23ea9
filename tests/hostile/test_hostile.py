"""Campaigns against the command line: planted violations are caught, and short runs find none."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve
from deep import deep_after

from conformance.cli.main import COMMANDS
from conformance.hostile import calls, contract, inputs, interrupts, run, running
from conformance.hostile.calls import CLEAN, Call, Link, Special
from conformance.hostile.interrupts import Subject
from conformance.hostile.running import How, Moment, Outcome
from conformance.hostile.samples import samples

KEYS: Final = (
    '"command": "fake", "scope": "sampled", "seed": 0, "seconds": 0, "geometry": null, '
    '"spec_version": "0.1.0", "not_checked": [], "error": null, '
)
UNDECIDED: Final = f'{{{KEYS}"verdict": "undecided", "failures": [], "interrupted": true}}'
HOLDS: Final = f'{{{KEYS}"verdict": "holds", "failures": [], "interrupted": false}}'
FAILS: Final = f'{{{KEYS}"verdict": "fails", "failures": ["RC"], "interrupted": true}}'
LISTENING: Final = """\
import signal, sys, time
def stop(*_):
    {react}
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
time.sleep(30)
"""


def fake(script: str, *, words: tuple[str, ...] = ("--json", "r.json")) -> Call:
    """A call of a shell script in place of kvspec."""
    files: dict[str, calls.Content] = {"input.csv": b"1\n", "r.json": b"old\n"}
    program = ("sh", "-c", script, "kvspec")
    return Call(about="fake", words=words, files=files, allowed=CLEAN, program=program)


def judged(call: Call, folder: Path, *, most: float = 20.0) -> list[str]:
    """The violations of the contract by a call."""
    calls.prepare(call, folder)
    return contract.violations(call, running.run(call, folder, most=most), folder)


def writes(result: str, status: int) -> str:
    """A script that writes this result and ends with this status."""
    return f"echo '{result}' > r.json; exit {status}"


@pytest.mark.parametrize(
    "script",
    [
        writes(HOLDS, 0),
        writes(UNDECIDED, 3),
        "echo 'kvspec fake: saw 1, allowed: 2' >&2; exit 2",
        "echo 'fuzz: 10 of 60' >&2; echo 'kvspec fake: no' >&2; exit 2",
    ],
)
def test_what_keeps_to_the_contract_is_no_violation(script: str, tmp_path: Path) -> None:
    """A consistent result, or one line of stderr without a result, is no violation."""
    assert [] == judged(fake(script), tmp_path / "call")


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("echo 'Traceback (most recent call last):' >&2; " + writes(UNDECIDED, 3), "trace"),
        ("exit 139", "status 139"),
        ("kill -s SEGV $$", "status -11"),
        ("kill -s TERM $$", "status -15"),
        ("rm input.csv; " + writes(HOLDS, 0), "lost file"),
        ("echo 2 > input.csv; " + writes(HOLDS, 0), "changed file"),
        ("echo 2 > r.json; echo 'kvspec: no' >&2; exit 2", "changed file"),
        ("rm r.json; exit 0", "lost file"),
        ("touch .kvspec-7.partial; " + writes(HOLDS, 0), "temporary file"),
        ("touch e.npz.new; " + writes(HOLDS, 0), "temporary file"),
        ("touch $TMPDIR/left; " + writes(HOLDS, 0), "temporary file"),
        (writes(HOLDS.replace("false", "true"), 0), "false holds"),
        (writes(HOLDS, 3), "result"),
        (writes(HOLDS[:40], 0), "result"),
        (writes(HOLDS.replace('"seed": 0', '"seed": -1'), 0), "result"),
        ("exit 0", "result"),
        ("echo 'kvspec fake: undecided'; exit 3", "result"),
        ("exit 1", "false fails"),
        ("echo 'kvspec: no' >&2; echo 'kvspec: no' >&2; exit 2", "message"),
        ("exit 2", "message"),
        ("echo 'bash: no' >&2; exit 2", "message"),
        ("sleep 60 & " + writes(HOLDS, 0), "left behind"),
        ("env -i sleep 60 & " + writes(HOLDS, 0), "left behind"),
        ("setsid sleep 60 & sleep 0.3; " + writes(HOLDS, 0), "left behind"),
    ],
)
def test_a_planted_violation_is_caught(
    script: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each planted violation is reported by its kind, and no process of the call is left."""
    monkeypatch.setattr(running, "LEFT_SECONDS", 0.5)
    found = judged(fake(script), tmp_path / "call")

    assert kind in {text.partition(":")[0] for text in found}


def test_an_engine_that_is_broken_must_not_hold(tmp_path: Path) -> None:
    """Status 0 for an engine with a planted bug is a false verdict."""
    call = evolve(fake(writes(HOLDS, 0)), allowed=calls.NOT_CLEAN)

    assert ["false holds: exit status 0, allowed here: [1, 2, 3]"] == judged(
        call, tmp_path / "call"
    )


def test_what_hangs_is_ended_and_told(tmp_path: Path) -> None:
    """A call that hangs is ended and reported, and its incomplete files are no other violation."""
    found = judged(fake("exec sleep 60", words=()), tmp_path / "call", most=0.5)

    assert ["hangs"] == [text.partition(":")[0] for text in found]


def test_a_result_is_looked_for_where_its_link_leads(tmp_path: Path) -> None:
    """A result is expected at the target of a link, even if the target did not exist."""
    for script, wrong in (
        (f"mkdir missing; echo '{HOLDS}' > missing/file", []),
        ("true", ["result: none was written, with exit status 0"]),
    ):
        call = fake(script, words=("--json", "nowhere"))
        call = evolve(call, files={**call.files, "nowhere": Link("missing/file")})
        assert wrong == judged(call, tmp_path / "call")


def test_what_is_read_must_not_be_written(tmp_path: Path) -> None:
    """An input may not be changed, also if the output is a symbolic link to it."""
    script = "echo 2 > input.csv; exit 0"
    for name in ("input.csv", "link"):
        call = fake(script, words=("input.csv", "--results", name))
        call = evolve(call, files={**call.files, "link": Link("input.csv")})
        assert ["changed file: work/input.csv"] == judged(call, tmp_path / "call")


def interrupted(react: str, folder: Path, *, seconds: float, how: How = How.PROCESS) -> Outcome:
    """The outcome of a program that gets a signal after this time."""
    call = Call(
        about="fake", words=(), program=("python3", "-S", "-c", LISTENING.format(react=react))
    )
    calls.prepare(call, folder)
    return running.run(call, folder, moment=Moment(seconds, how, cold=False), most=20)


@pytest.mark.parametrize("how", deep_after(2, How))
def test_a_signal_is_sent_to_a_process_that_listens(how: How, tmp_path: Path) -> None:
    """Every way of interrupting reaches a process that listens, and its status is observed."""
    outcome = interrupted("sys.exit(3)", tmp_path / "call", seconds=1.5, how=how)

    assert (3, True) == (outcome.status, outcome.listening)
    assert outcome.after is not None


def test_before_a_process_listens_only_its_files_are_held(tmp_path: Path) -> None:
    """If no process listens yet, only the files of the call are judged."""
    call, moment = fake("sleep 30"), Moment(0.3, How.TERM, cold=False)
    calls.prepare(call, tmp_path / "call")
    outcome = running.run(call, tmp_path / "call", moment=moment, most=20)

    assert (-15, False) == (outcome.status, outcome.listening)
    assert [] == contract.violations(call, outcome, tmp_path / "call", moment=moment)


def test_an_end_that_comes_late_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends too long after the signal is reported as late."""
    monkeypatch.setattr(contract, "END_SECONDS", 0.5)
    outcome = interrupted("time.sleep(1); sys.exit(3)", tmp_path / "call", seconds=1.5)
    found = contract.violations(
        fake(""), outcome, tmp_path / "call", moment=Moment(1.5, How.PROCESS, cold=False)
    )

    assert "late" in {text.partition(":")[0] for text in found}


def test_moments_are_drawn_from_the_seed() -> None:
    """The moments depend on the seed: half are early and a third cold, interrupted in every way."""
    drawn = [interrupts.moment(0, "fuzz", at) for at in range(600)]

    assert drawn == [interrupts.moment(0, "fuzz", at) for at in range(600)]
    assert drawn != [interrupts.moment(1, "fuzz", at) for at in range(600)]
    assert 0.5 < sum(moment.seconds < 3 for moment in drawn) / 600 < 0.65
    assert 0.25 < sum(moment.cold for moment in drawn) / 600 < 0.42
    assert {*How} == {moment.how for moment in drawn}
    assert all(0 <= moment.seconds <= 20 for moment in drawn)


def test_a_chain_that_counts_wrong_after_it_was_resumed_is_told(tmp_path: Path) -> None:
    """The counts of interrupted runs must equal those of the run without an interruption."""
    script = """\
n=$(cat count 2>&- || echo 0); echo $((n + 1)) > count
echo '{RESULT, "states": '$((n > 0))'}' > r.json
"""
    script = script.replace("{RESULT", HOLDS.removesuffix("}"))
    call = evolve(fake(script, words=()), files={"count": b"1\n"})
    found: list[list[str]] = []
    interrupts.try_chain(
        "fake",
        Subject(call=call, chained=True),
        {0: Moment(20.0, How.PROCESS, cold=False)},
        tmp_path / "chain",
        warm=tmp_path,
        keep=lambda tried, _call, _outcome: found.append(tried.violations),
    )

    assert 2 == len(found)
    assert not any("false holds" in text for texts in found for text in texts)
    broken = script.replace("n > 0", "n")
    interrupts.try_chain(
        "fake",
        Subject(call=evolve(call, program=("sh", "-c", broken, "kvspec")), chained=True),
        {0: Moment(20.0, How.PROCESS, cold=False)},
        tmp_path / "chain",
        warm=tmp_path,
        keep=lambda tried, _call, _outcome: found.append(tried.violations),
    )
    assert any(text.startswith("false holds") for text in found[-1])


@pytest.mark.parametrize(("status", "kinds"), [(1, []), (0, ["false fails"])])
def test_a_finding_that_does_not_fail_again_is_told(
    status: int, kinds: list[str], tmp_path: Path
) -> None:
    """The history that an interrupted run has kept is run again, and must fail again."""
    script = f"""\
test "$1" = rerun && exit {status}
mkdir -p .kvspec/corpus; touch .kvspec/corpus/rc_1.jsonl; {writes(FAILS, 1)}
"""
    call = evolve(fake(script, words=("fuzz",)), allowed=calls.NOT_CLEAN, files={})
    found: list[list[str]] = []
    interrupts.try_one(
        "fake",
        Subject(call=call),
        0,
        Moment(20.0, How.PROCESS, cold=False),
        tmp_path / "call",
        warm=tmp_path,
        keep=lambda tried, _call, _outcome: found.append(tried.violations),
    )

    assert [kinds] == [[text.partition(":")[0] for text in texts] for texts in found]


@pytest.mark.deep
def test_hostile_inputs_are_drawn_from_the_seed_and_from_every_command() -> None:
    """The calls depend on the seed, and have every command and every kind of input."""
    drawn = inputs.draw(300, seed=0)

    assert {*COMMANDS} == {*inputs.BASES}
    assert inputs.draw(40, seed=0) == inputs.draw(40, seed=0)
    assert inputs.draw(40, seed=0) != inputs.draw(40, seed=1)
    assert 300 == len(drawn)
    assert {*COMMANDS} <= {call.words[0] for call in drawn if call.words}
    kinds = ("options", "streams", "environment", "a foreign", "an engine", "--python")
    assert [] == [kind for kind in kinds if not any(one.about.startswith(kind) for one in drawn)]
    assert any("damaged" in call.about for call in drawn)


def test_no_path_of_a_call_leaves_its_folder() -> None:
    """Paths in a call lie below its folder, since the campaign often runs as root."""
    for call in inputs.draw(100, seed=2):
        named = [word.partition("=")[2] or word for word in call.words]
        outside = [word for word in named if word.startswith("/")]
        assert all(word.startswith(("/proc/", "/sys/", "/bin/", "/dev/null")) or
                   Path(word).name.startswith("python") for word in outside)  # fmt: skip


def test_the_samples_are_valid(tmp_path: Path) -> None:
    """The samples are accepted before they are damaged."""
    held: dict[str, calls.Content] = {**samples()}
    legality = ("--require", "nothing")
    for words in (("validate", "recording.jsonl", *legality),
                  ("validate", "trace.itf.json", *legality),
                  ("rerun", "history.jsonl", "--trust"), inputs.READS[6][0]):  # fmt: skip
        call = Call(about="valid", words=words, files=held)
        calls.prepare(call, tmp_path / "call")
        assert 0 == running.run(call, tmp_path / "call", most=60).status


def test_a_failing_input_is_kept_and_can_be_repeated(tmp_path: Path) -> None:
    """The kept shell command of a failing call gives the same status, and no call is run twice."""
    program = ("sh", "-c", "echo Segmentation fault; exit 139", "kvspec")
    lines = run.hostile_inputs(number=3, seed=0, home=tmp_path, program=program)
    again = [line["again"] for line in lines if line["status"] == 139]

    assert again
    assert {"status 139", "trace"} <= {*run.classes(lines)}
    command = os.fsencode(again[0])
    assert (
        139 == subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode
    )
    kept = (tmp_path / "inputs.jsonl").read_text(encoding="utf-8")
    other = ("sh", "-c", "exit 0", "kvspec")
    assert lines == run.hostile_inputs(number=3, seed=0, home=tmp_path, program=other)
    assert kept == (tmp_path / "inputs.jsonl").read_text(encoding="utf-8")


def test_special_files_are_made(tmp_path: Path) -> None:
    """A FIFO, a folder and links of both kinds can be files of a call."""
    files: dict[str, calls.Content] = {
        "a": b"x",
        "fifo": Special.FIFO,
        "folder": Special.FOLDER,
        "soft": Link("a"),
        "hard": Link("a", hard=True),
    }
    calls.prepare(Call(about="", words=(), files=files), tmp_path)
    work = tmp_path / "work"

    assert (work / "fifo").is_fifo()
    assert (work / "folder").is_dir()
    assert (work / "soft").is_symlink()
    assert (work / "a").samefile(work / "hard")


def test_the_table_says_how_many_came_early_and_how_late_the_slowest_end_was() -> None:
    """Each command has a row with its early moments and its slowest end."""
    lines = [
        {"command": "fuzz", "early": False, "status": 3, "after": 1.25, "violations": []},
        {"command": "fuzz", "early": True, "status": -2, "after": 9.0, "violations": []},
        {"command": "fuzz", "early": False, "status": 139, "after": 0.5, "violations": ["status"]},
    ]
    header, row = run.table(lines).splitlines()

    assert header.split()[:3] == ["command", "moments", "early"]
    assert "fuzz     3        1      1 x 3, 1 x 139  1.2 s        1" == row


@pytest.mark.parametrize("number", deep_after(1, [2, 8]))
def test_a_few_hostile_inputs(number: int, tmp_path: Path) -> None:
    """A short campaign of hostile inputs finds no violation, or prints how to repeat it."""
    lines = run.hostile_inputs(number=number, seed=5, home=tmp_path, program=calls.KVSPEC)

    assert [] == [(line["again"], line["violations"]) for line in lines if line["violations"]]


def test_a_few_interrupts(tmp_path: Path) -> None:
    """A short campaign of interrupts finds no violation, and a resumed explore has right counts."""
    every = interrupts.subjects()
    small = evolve(every["explore --checkpoint"].call, words=EXPLORE)
    chosen = {"explore": Subject(call=small, chained=True), "diff": every["diff"]}
    lines = run.interrupted(chosen, moments=2, seed=7, home=tmp_path)

    assert 2 + 1 + 2 == len(lines)
    assert [] == [(line["again"], line["violations"]) for line in lines if line["violations"]]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_the_exit_does_not_take_the_status(name: str) -> None:
    """A signal while Python removes globals, after its own handlers, does not change the status."""
    script = f"""\
import os, signal
from conformance.cli.contract import conclude
from conformance.runtime.supervisor import supervised
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid, number=signal.{name}):
        kill(pid(), number)
status = supervised(lambda tell: 3, conclude=conclude)
late = Late()
raise SystemExit(status)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)

    assert 3 == done.returncode


def test_a_signal_that_waits_when_the_child_begins_leaves_no_trace() -> None:
    """A signal before the child has handlers is held back, and arrives once they are in place."""
    script = """\
import os, signal
from conformance.runtime import interrupts
from conformance.cli.contract import conclude
from conformance.runtime.supervisor import supervised
listen = interrupts.listen
def interrupted():
    listen()
    os.kill(os.getpid(), signal.SIGINT)
interrupts.listen = interrupted
raise SystemExit(supervised(lambda tell: 0, conclude=conclude))
"""
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert (3, "") == (done.returncode, done.stderr)


EXPLORE: Final = ("explore", "--checkpoint", "e.npz")
