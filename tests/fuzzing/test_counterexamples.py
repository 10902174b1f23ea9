"""Findings are never lost, and code that a file names does not run without --trust."""

import ast
import errno
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields
from counterexample_tools import GROW, OURS, SIZES, USUAL, recorded
from deep import deep_after

from conformance.cli.contract import Report
from conformance.cli.main import main
from conformance.engines.registry import OUR_ENGINE
from conformance.files import atomic, histories
from conformance.files.geometries import geometry_to_text
from conformance.files.histories import Recorded
from conformance.fuzzing import counterexamples
from conformance.lockstep.run import Finding
from spec.vocabulary import CleanupMode, default_limits

AT = geometry_to_text(SIZES)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def full(_path: object, _content: object) -> None:
    """Writes a file where the disk is full."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_finding_is_reported_before_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is reported before a write that may end the process."""
    kept, report = recorded("leak", GROW), Report(command="fuzz", seed=0)
    printed: list[str] = []

    def ends(_path: object, _content: object) -> None:
        printed.extend(said)
        raise KeyboardInterrupt

    said: list[str] = []
    monkeypatch.setattr(report.output, "say", said.append)
    monkeypatch.setattr(atomic, "write", ends)
    with pytest.raises(KeyboardInterrupt):
        counterexamples.report_finding(
            kept,
            Finding(kept.history, "CONS", "a page leaks"),
            Path("corpus"),
            report,
            sizes="chosen by the kit",
        )

    assert [f"CONS: a page leaks (after 3 steps, at {AT}: chosen by the kit)"] == report.failures
    assert printed
    assert printed[0].startswith("CONS: a page leaks")


@pytest.mark.parametrize("name", [one.name for one in fields(Recorded)])
def test_findings_that_differ_in_anything_are_both_kept(name: str) -> None:
    """A finding replaces another one in the corpus only if all of both is the same."""
    one = recorded("leak", GROW)
    others: dict[str, Any] = {
        "geometry": evolve(SIZES, pages=SIZES.pages + 1),
        "limits": evolve(one.limits, rounds=one.limits.rounds + 1),
        "cleanup": next(mode for mode in CleanupMode if mode is not one.cleanup),
        "history": one.history[:-1],
        "in_process": not one.in_process,
    }
    other = evolve(one, **{name: others.get(name, "another")})

    paths = [counterexamples.write(kept, Path("corpus"))[0] for kept in (one, other, one)]

    assert 2 == len(set(paths))
    assert [one, other] == [histories.load(path) for path in paths[:2]]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_finding_that_cannot_be_kept_is_reported_with_its_history(
    *, quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding is a failure, one line says that it was not saved, and the printed lines load."""
    kept, report = recorded("leak", GROW), Report(command="fuzz", seed=0, quiet=quiet)
    monkeypatch.setattr(atomic, "write", full)

    counterexamples.report_finding(
        kept,
        Finding(kept.history, "CONS", "a page leaks"),
        Path("corpus"),
        report,
        sizes="chosen by the kit",
    )

    assert [f"CONS: a page leaks (after 3 steps, at {AT}: chosen by the kit)"] == report.failures
    assert [
        "the rerun from corpus: the history could not be saved there: No space left on device"
    ] == report.not_checked
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    Path("again.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert kept == histories.load(Path("again.jsonl"))


def test_a_full_disk_does_not_cost_the_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command fails with status 1, and nothing is left in the corpus."""
    monkeypatch.setenv("TOY_BUG", "double free")
    monkeypatch.setattr(atomic, "write", full)

    assert 1 == main(["fuzz", "--engine", "toy_engine:make", "--seconds", "20"])

    out = capsys.readouterr().out
    assert "FAILS: " in out
    assert '{"kvspec": "history"' in out
    assert not Path(".kvspec/corpus").exists()


def test_a_counterexample_appears_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk fills up in the middle, no part of a file is left."""

    def nearly_full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", nearly_full)
    with pytest.raises(OSError, match="No space"):
        counterexamples.write(recorded("leak", GROW), Path("corpus"))

    assert [] == list(Path("corpus").iterdir())


def test_a_clause_of_a_file_is_no_path_and_no_code() -> None:
    """The written files are in the folder, and run no code of the clause."""
    hostile = evolve(OURS, clause='../x"""\nraise SystemExit(7)\n"""')

    history, test = counterexamples.write(hostile, Path("corpus"))

    assert Path("corpus") == history.parent == test.parent
    tree = ast.parse(test.read_text())
    assert [ast.Expr, ast.FunctionDef] == [type(tree.body[0]), type(tree.body[-2])]
    assert not [node for node in tree.body if isinstance(node, ast.Raise)]


def test_bad_files_of_the_corpus_are_named_and_passed_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unreadable files are named and skipped, and the others are replayed."""
    corpus = Path("corpus")
    counterexamples.write(OURS, corpus)
    good = next(corpus.glob("*.jsonl")).read_text()
    (corpus / "empty.jsonl").touch()
    (corpus / "folder.jsonl").mkdir()
    (corpus / "dangling.jsonl").symlink_to("nowhere")
    (corpus / "loop.jsonl").symlink_to("loop.jsonl")
    (corpus / "version.jsonl").write_text(good.replace('"version": 1', '"version": 2'))
    (corpus / "binary.jsonl").write_bytes(bytes(range(256)))
    (corpus / "cut.jsonl").write_text(good[:-5])
    report = Report(command="fuzz", seed=0)

    taken = [one for _, one in counterexamples.corpus(corpus, report)]

    assert [OURS] == taken
    assert 7 == len(report.not_checked)
    words = ["fuzz", "--seconds", "0.1", "--corpus", str(corpus), "--engine", "toy_engine:make"]
    assert main([*words, "--not-checked"]) in {0, 3}
    assert 7 == capsys.readouterr().out.count("  not checked: corpus/")


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "witness:make"},
        {"python": "/no/such/python"},
        {"limits": evolve(default_limits(USUAL), queue=2**31 - 1)},
    ],
    ids=["engine", "python", "limits"],
)
def test_a_file_of_the_corpus_runs_nothing_that_was_not_asked_for(
    change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with another engine, another Python or huge sizes is named and not replayed."""
    witness()
    toy = evolve(OURS, engine="toy_engine:make")
    counterexamples.write(evolve(toy, **change), Path("corpus"))

    words = ["--engine", "toy_engine:make", "--seconds", "0.1", "--corpus", "corpus"]
    assert main(["fuzz", *words, "--json", "r.json"]) in {0, 3}

    assert 0 == json.loads(Path("r.json").read_text())["corpus_replayed"]
    assert "recorded with another engine or sizes; use kvspec rerun" in capsys.readouterr().out
    assert not Path("imported").exists()


def witness() -> None:
    """A module in this folder that leaves a file behind when it is imported."""
    Path("witness.py").write_text("open('imported', 'w').close()\nfrom toy_engine import make\n")


def history(**change: Any) -> str:
    """A history file that names an engine; its name."""
    Path("h.jsonl").write_text(histories.dump(evolve(OURS, geometry=SIZES, **change)))
    return "h.jsonl"


@pytest.mark.parametrize(
    ("change", "words", "told"),
    [
        ({"engine": "witness:make"}, (), "the engine witness:make in this Python"),
        ({"engine": "witness:make"}, ("--python", sys.executable), "witness:make in the Python"),
        ({"python": "./python"}, (), f"{OUR_ENGINE} in the Python ./python, named by the file"),
        ({"engine": "conformance.engines.ours:np"}, (), "conformance.engines.ours:np"),
    ],
)
def test_rerun_runs_nothing_that_only_a_file_names(
    change: dict[str, Any],
    words: tuple[str, ...],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command names the code and the option that allows it; it imports and starts nothing."""
    witness()
    Path("python").write_text("#!/bin/sh\ntouch started\n")
    Path("python").chmod(0o755)
    imported = set(sys.modules)

    assert 2 == main(["rerun", history(**change), *words, "--json", "r.json"])

    said = capsys.readouterr().err
    assert told in said
    assert "or --trust" in said
    assert 1 == said.count("\n")
    assert not [one for one in ("imported", "started", "r.json") if Path(one).exists()]
    assert "witness" not in set(sys.modules) - imported


@pytest.mark.parametrize(
    "words", [("--trust",), ("--engine", "witness:make"), ("--trust", "--python", sys.executable)]
)
def test_rerun_runs_what_is_asked_for(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine runs if it is named on the command line, or if the file is trusted."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "tools"))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("witness", None)
    witness()

    named = history(engine="witness:make", limits=default_limits(SIZES))
    assert 0 == main(["rerun", named, *words])
    assert Path("imported").exists()
    sys.modules.pop("witness", None)


@pytest.mark.parametrize(
    ("engine", "python"),
    deep_after(
        1,
        [
            (OUR_ENGINE, None),
            ("conformance.engines.ours:make_without_cells", sys.executable),
            (OUR_ENGINE, sys.executable),
            ("conformance.engines.ours:make_without_cells", None),
        ],
    ),
)
def test_the_command_that_is_told_runs_the_history(
    engine: str, python: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a history names, a copy of what is printed beside it replays it."""
    kept = evolve(recorded("leak", GROW), engine=engine, python=python)
    history, _ = counterexamples.write(kept, Path("corpus"))
    command = counterexamples.again(kept, history)

    status = main(shlex.split(command)[1:])

    assert status in {0, 1}, capsys.readouterr().err
