"""The parts of the command line: geometry, engine, report, result file, progress."""

import argparse
import io
import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest
from attrs import evolve

from conformance.cli import options, result_json
from conformance.cli.contract import Report
from conformance.cli.main import main
from conformance.cli.progress import progress
from conformance.engines import registry
from conformance.files import atomic
from conformance.files.geometries import parse_geometry
from conformance.verdict import Verdict
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import Geometry

SIZES = "pages=16,slots=4,page_size=4,pages_per_seq=4"
GEOMETRY = Geometry(pages=16, slots=4, page_size=4, pages_per_seq=4)


def test_a_geometry_is_read_in_any_order() -> None:
    """The four sizes make a Geometry whatever their order, and a window may be among them."""
    assert GEOMETRY == parse_geometry(SIZES)
    assert GEOMETRY == parse_geometry("pages_per_seq=4,pages=16,page_size=4,slots=4")
    assert evolve(GEOMETRY, window=7) == parse_geometry(f"window=7,{SIZES}")


@pytest.mark.parametrize(
    "text",
    ["", "pages", SIZES + ",", SIZES + ",depth=3", SIZES + ",pages=16", SIZES.replace("16", "-1"),
     SIZES.replace("16", "1_6"), SIZES.replace("16", " 16"), SIZES.replace("pages=16", "pages=x")],
)  # fmt: skip
def test_a_geometry_needs_each_size_once(text: str) -> None:
    """Missing, repeated, unknown and non-integer sizes are bad input."""
    with pytest.raises(InvalidInput, match="each once"):
        parse_geometry(text)


def test_an_engine_is_found_beside_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module in the current folder can be named as an engine."""
    (tmp_path / "my_adapter_of_tests.py").write_text("def make():\n    return 'engine'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    assert "engine" == registry.load_engine("my_adapter_of_tests:make")()


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("json", "'json'"),
        (":make", "':make'"),
        ("no_such_module_here:make", "no module no_such_module_here"),
        ("json.no_such_part:make", "no module json.no_such_part"),
        ("json:no_such_factory", "no callable no_such_factory in json"),
        ("needs_what_is_absent:make", "needs_what_is_absent needs no_such_module_here"),
        ("json:__name__", "no callable __name__ in json"),
    ],
)
def test_an_unknown_engine_is_bad_input(
    name: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error for an unknown engine names the part that was not found."""
    (tmp_path / "needs_what_is_absent.py").write_text("import no_such_module_here")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(InvalidInput, match="MODULE:FACTORY") as caught:
        registry.load_engine(name)

    assert seen in str(caught.value)


def test_counts_cannot_replace_the_contract() -> None:
    """A command's counts may not use a key that every result has."""
    report = Report(command="fake", seed=0)

    with pytest.raises(ValueError, match="verdict"):
        report.count(verdict="holds")
    assert {} == report.counts


def test_a_result_is_plain_data_and_whole(tmp_path: Path) -> None:
    """Enums, sets, tuples and infinities become JSON, and no temporary file is left."""
    target = tmp_path / "out.json"
    value = {"a": Verdict.HOLDS, "b": {3, 1}, "c": (1, None), "d": float("inf")}

    atomic.write(target, result_json.to_text(value))
    assert {"a": "holds", "b": [1, 3], "c": [1, None], "d": None} == json.loads(target.read_text())
    assert [target] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("fuzz --corpus file", "--corpus: saw file: {here}/file, which is not a folder"),
        ("fuzz --corpus file/below", "--corpus: saw file/below: "),
        ("diff a:b c:d --corpus /proc/no", "--corpus: saw /proc/no: "),
        ("replay trace --format azure --corpus file", "--corpus: saw file: "),
        ("validate file --itf folder", "--itf: saw folder: a folder, allowed: "),
        ("validate file --illegal file", "--illegal: saw file: "),
        ("compare --kept --write file/page.md", "--write: saw file/page.md: "),
        ("plant --write /proc/no/page.md", "--write: saw /proc/no/page.md: "),
        ("explore --checkpoint folder", "--checkpoint: saw folder: a folder, allowed: "),
        ("kernel tpu --reproduce folder", "--reproduce: saw folder: a folder, allowed: "),
        ("kernel tpu --target v5e --results file/x", "--results: saw file/x: "),
        ("vectors file", "saw file: {here}/file, which is not a folder"),
        ("vectors .", ".: saw '2 other files, file the first'"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(
    line: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An output that cannot be written is refused in advance, and no file or folder is created."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()

    assert 2 == main(line.split())
    said = capsys.readouterr().err
    assert 1 == said.count("\n")
    assert says.format(here=tmp_path) in said
    assert {"file", "folder"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("parse", [options.output_file, options.output_folder])
def test_a_path_in_folders_that_are_not_there_yet_will_do(
    parse: Callable[[str], object], tmp_path: Path
) -> None:
    """Missing folders of an output are accepted, and created when it is written."""
    wanted = str(tmp_path / "new" / "deep" / "x")

    assert wanted == str(parse(wanted))
    assert [] == list(tmp_path.iterdir())


def test_a_result_follows_links(tmp_path: Path) -> None:
    """Writing through a link replaces its target, not the link."""
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    link.symlink_to(target)

    atomic.write(link, result_json.to_text({"a": 1}))
    assert link.is_symlink()
    assert {"a": 1} == json.loads(target.read_text())


def test_progress_elsewhere_than_on_a_terminal_is_a_line_now_and_then() -> None:
    """Off a terminal there is one line per ten seconds, and none if quiet."""
    times = iter([0.0, 1.0, 10.5, 11.0, 21.0])
    stream, silent = io.StringIO(), io.StringIO()

    with progress("fuzz", total=60, stream=stream, clock=lambda: next(times)) as update:
        for done in (1, 10.5, 11, 21):
            update(done, "7 steps")
    with progress("fuzz", total=60, stream=silent, quiet=True, line_seconds=0) as update:
        update(1)

    assert "fuzz: 10.5 of 60, 7 steps\nfuzz: 21 of 60, 7 steps\n" == stream.getvalue()
    assert "" == silent.getvalue()


@pytest.mark.parametrize("amount", [0, 0.5, 7, 999_999, 1_234_567, 29_075_123_456])
def test_every_digit_of_an_amount_is_told(amount: float) -> None:
    """Amounts past a million are written out, as those below."""
    stream, times = io.StringIO(), count(step=1000)

    with progress("states", total=amount, stream=stream, clock=lambda: next(times)) as update:
        update(amount, "")

    assert f"states: {amount} of {amount}\n" == stream.getvalue()


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the label, the note and a bar are drawn, and markup in them is text."""
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    times = iter(range(100))

    with progress("fuzz [a]", total=2, stream=stream, clock=lambda: next(times)) as update:
        update(1, "[b] note")

    assert "fuzz [a]" in stream.getvalue()


@pytest.mark.parametrize("seed", range(8))
def test_progress_is_told_no_more_often_than_that_however_the_time_goes(seed: int) -> None:
    """After long pauses too there is one line, and the next one only so many seconds later."""
    rng, stream = Random(seed), io.StringIO()
    times = [0.0]
    for _ in range(40):
        times.append(times[-1] + rng.choice((0.0, 0.5, 2.0, 7.0, 10.0, 45.0)))
    clock, expected, last = iter(times), list[str](), times[0]

    with progress("fuzz", total=None, stream=stream, clock=lambda: next(clock)) as update:
        for number, now in enumerate(times[1:]):
            update(number)
            if now - last >= 10.0:
                expected.append(f"fuzz: {number}")
                last = now

    assert expected == stream.getvalue().splitlines()


@pytest.mark.parametrize("below", ["", "one", "one/two", "link", "link/one", "../outside/back"])
@pytest.mark.parametrize("relative", [True, False])
def test_no_output_lies_in_a_folder_that_is_an_output_too(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, relative: bool
) -> None:
    """At any depth, and behind links to it, a file belongs to the folder; one beside it is free."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "folder"
    (folder / "one" / "two").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (folder / "link").symlink_to(folder / "one")
    (tmp_path / "outside" / "back").symlink_to(folder)
    where = Path("folder" if relative else folder)
    inside = options.output_file(str(where / below / "r.json"))
    beside = options.output_file(str(where.parent / "outside" / "r.json"))

    with pytest.raises(InvalidInput, match="a file in "):
        options.check_distinct([inside, where])

    options.check_distinct([beside, where])
    options.check_distinct([inside, beside])


@pytest.mark.parametrize("first", ["r.json", "link.json", "hard.json", "./r.json", "none/new.json"])
@pytest.mark.parametrize("second", ["r.json", "link.json", "hard.json", "none/new.json", "s.json"])
@pytest.mark.parametrize("reads", [True, False])
def test_two_names_of_one_file_are_refused_and_others_are_not(
    first: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reads: bool
) -> None:
    """An output is no input and no other output, however each of them is named."""
    monkeypatch.chdir(tmp_path)
    Path("r.json").touch()
    Path("hard.json").hardlink_to("r.json")
    Path("link.json").symlink_to("r.json")
    one = (options.input_file if reads else options.output_file)(first)
    other = options.output_file(second)
    same = second == first or ("s.json" != second and "none" not in first + second)

    for values in ([one, other], [other, one], [one, None, "text", 3, other]):
        try:
            options.check_distinct(values)
            seen = False
        except InvalidInput:
            seen = True
        assert same == seen


INTEGERS = [str(one) for one in (-1, 0, 1, 7, 2**31 - 2, 2**31 - 1, 2**31)]


@pytest.mark.parametrize("least", [0, 1, 7])
def test_a_number_is_read_up_to_its_very_limits(least: int) -> None:
    """Both limits themselves are allowed, and the next number beyond each is not."""
    for text in (*INTEGERS, "1.5", "", "inf", "nan", "1e0", " 7", "1_0"):
        try:
            seen: object = options.integer(least=least)(text)
        except argparse.ArgumentTypeError:
            seen = None
        legal = text in INTEGERS and least <= int(text) < 2**31
        assert (int(text) if legal else None) == seen

    for text, value in {"0.1": 0.1, "0.09": 0.09, "0": 0.0, "-1": -1.0, "1e3": 1000.0}.items():
        try:
            seen = options.number(least=0.1 * least)(text)
        except argparse.ArgumentTypeError:
            seen = None
        assert (value if value >= 0.1 * least else None) == seen
    for text in ("inf", "nan", "", "x", "-inf"):
        with pytest.raises(argparse.ArgumentTypeError):
            options.number(least=0.0)(text)


@pytest.mark.parametrize("base", ["here", "first", "last"])
@pytest.mark.parametrize("module", ["engine", "package.engine", "deep.package.engine"])
@pytest.mark.parametrize("is_package", [True, False])
def test_no_output_is_the_source_of_an_engine_wherever_python_finds_it(
    base: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_package: bool
) -> None:
    """The current folder and each folder on the path may hold it, as a module or a package."""
    folders = {name: tmp_path / name for name in ("here", "first", "last")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.chdir(folders["here"])
    path = [str(folders["first"]), *sys.path, str(folders["last"])]
    monkeypatch.setattr(sys, "path", path)
    source = folders[base].joinpath(*module.split("."))
    source = source / "__init__.py" if is_package else source.with_suffix(".py")
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("")

    with pytest.raises(InvalidInput, match="the source of the engine"):
        options.check_distinct([f"{module}:make", options.output_file(str(source))])

    options.check_distinct([f"{module}:make", options.output_file(str(source) + ".json")])
    options.check_distinct([module, options.output_file(str(source))])
