"""The contract of every call of the command line, for any input and whenever it ended."""

import importlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from conformance.hostile.calls import (
    BAD_INPUT,
    FAILS,
    HOLDS,
    PYTEST,
    STATUSES,
    UNDECIDED,
    Call,
    Link,
)
from conformance.hostile.running import Moment, Outcome

END_SECONDS: Final = 15.0
"""Time limit for the end of a call after a signal."""
TRACES: Final = (
    "Traceback (most recent call last)",
    "INTERNALERROR",
    "Exception ignored",
    "Fatal Python error",
    "Segmentation fault",
)
UNFINISHED: Final = (".partial", ".new", ".tmp")
"""The suffix of a file that is still being written."""
PRINTS_NOWHERE: Final = re.compile(r"(?<!2)>|\|")
"""Redirections that lose standard output: status 2 beside a whole result is right."""
OUTPUTS: Final = ("--checkpoint", "--results", "--write", "--itf", "--reproduce")
STATUS: Final = {"holds": HOLDS, "fails": FAILS, "undecided": UNDECIDED}
PROGRESS: Final = re.compile(r"[\w-]+: [\d.e+]+( of [\d.e+]+)?( .*)?")
"""A line of progress where stderr is no terminal."""


def violations(
    call: Call, outcome: Outcome, folder: Path, *, moment: Moment | None = None
) -> list[str]:
    """The violations of the contract; the word before the colon is the class."""
    if moment is not None and not outcome.listening:
        return list(_lost_files(call, outcome))
    found = [
        *_lost_files(call, outcome),
        *_unfinished_files(outcome),
        *(_of_pytest(outcome) if call.program == PYTEST else _of_kvspec(call, outcome, folder)),
    ]
    if outcome.timed_out:
        found.append(f"hangs: it had not ended after {outcome.seconds:.0f} s")
    elif outcome.after is not None and outcome.after > END_SECONDS:
        found.append(f"late: it ended {outcome.after:.1f} s after the signal")
    found += [f"left behind: {name}" for name in outcome.left]
    return found


def _of_kvspec(call: Call, outcome: Outcome, folder: Path) -> Iterator[str]:
    yield from _status(call, outcome)
    yield from _traces(outcome, TRACES[1:] if call.traced else TRACES)
    yield from _result(call, outcome, folder)
    if outcome.status == BAD_INPUT and "2>" not in call.redirect:
        yield from _one_line(outcome, traced=call.traced)


def _of_pytest(outcome: Outcome) -> Iterator[str]:
    """Violations of a call of pytest, which has its own exit statuses; 3 is an internal error.

    A foreign `conformance` gives 3 too, before anything of kvspec is loaded.
    """
    alien = "Error while loading plugin" in outcome.err
    if outcome.status not in {0, 1, 2, 4, 5} and not outcome.timed_out and not alien:
        yield f"status {outcome.status}: of pytest, allowed are 0, 1, 2, 4 and 5"
    if outcome.status == 0 and " passed" not in outcome.out:
        yield "false holds: pytest ended with 0, and nothing passed"
    yield from _traces(outcome, TRACES[1:])


def _status(call: Call, outcome: Outcome) -> Iterator[str]:
    if outcome.timed_out:
        return
    if outcome.status not in STATUSES:
        yield f"status {outcome.status}: allowed are 0, 1, 2 and 3"
    elif outcome.status not in call.allowed:
        name = {HOLDS: "holds", FAILS: "fails"}.get(outcome.status, "verdict")
        yield f"false {name}: exit status {outcome.status}, allowed here: {sorted(call.allowed)}"


def _traces(outcome: Outcome, texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        if text in outcome.out or text in outcome.err:
            yield f"trace: {text}"


def _lost_files(call: Call, outcome: Outcome) -> Iterator[str]:
    """Existing files must be unchanged; only a result may replace an earlier one."""
    result = None if call.json_path is None else f"work/{call.json_path}"
    written = _written(call)
    for name, state in outcome.before.items():
        if name.endswith(UNFINISHED):
            continue
        now = outcome.files.get(name)
        may_change = name in written and outcome.status != BAD_INPUT
        if now is None and not (may_change and name != result):
            yield f"lost file: {name} is gone"
        elif now not in {None, state} and not may_change:
            yield f"changed file: {name}"


def _written(call: Call) -> set[str]:
    """The output files of a call; its input files are not among them."""
    named = {path for path in (call.json_path, *_outputs(call)) if path is not None}
    if call.words[:1] == ("vectors",) and len(call.words) > 1:
        named.add(f"{call.words[1]}/manifest.json")  # of earlier vectors: others are refused
    links = {path: call.files.get(path) for path in named}
    named |= {link.to for link in links.values() if isinstance(link, Link) and not link.hard}
    return {f"work/{path}" for path in named - set(_inputs(call))}


def _outputs(call: Call) -> Iterator[str]:
    for word, following in pairwise(call.words):
        if word in OUTPUTS:
            yield following
        option, _, path = word.partition("=")
        if option in OUTPUTS and path:
            yield path


def _inputs(call: Call) -> Iterator[str]:
    """The positional words that name files."""
    for before, word in pairwise(("", *call.words)):
        if word in call.files and not before.startswith("--"):
            yield word


def _unfinished_files(outcome: Outcome) -> Iterator[str]:
    new = sorted(outcome.files.keys() - outcome.before.keys())
    left = [name for name in new if name.startswith("tmp/") or name.endswith(UNFINISHED)]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        yield f"temporary file: {left[0]}{more}, was left"


def _result(call: Call, outcome: Outcome, folder: Path) -> Iterator[str]:
    """The file of --json must be unchanged, or whole and consistent with the exit status."""
    if call.json_path is None:
        return
    link = call.files.get(call.json_path)  # what it leads to is written
    name = f"work/{link.to if isinstance(link, Link) and not link.hard else call.json_path}"
    now, earlier = outcome.files.get(name), outcome.before.get(name)
    if outcome.status == BAD_INPUT and not PRINTS_NOWHERE.search(call.redirect):
        if now is not None and earlier is None:
            yield "result: a file was written with exit status 2"
        return
    if now == earlier:
        if outcome.status != UNDECIDED or "kvspec " in outcome.out:
            yield f"result: none was written, with exit status {outcome.status}"
        return
    try:
        value = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield f"result: no JSON: {error}"
        return
    yield from _agrees(value, outcome)


def _agrees(value: Any, outcome: Outcome) -> Iterator[str]:
    for error in _validator().iter_errors(value):
        yield f"result: violates the schema: {error.message[:200]}"
        return
    if outcome.status == BAD_INPUT:  # what could not be printed is no failure of the engine
        if value["failures"]:
            yield "result: has failures, with exit status 2"
        return
    if STATUS[value["verdict"]] != outcome.status:
        yield f"result: says {value['verdict']}, with exit status {outcome.status}"
    if value["verdict"] == "holds" and value["interrupted"]:
        yield "false holds: the result says that it was interrupted"


@cache
def _validator() -> Any:
    """The validator of results; their schema refers to that of recordings."""
    jsonschema: Any = importlib.import_module("jsonschema")
    referencing: Any = importlib.import_module("referencing")
    schemas = files("conformance.files").joinpath("schemas")
    held = {one.name: json.loads(one.read_text(encoding="utf-8")) for one in schemas.iterdir()}
    pairs = [(name, referencing.Resource.from_contents(one)) for name, one in held.items()]
    registry = referencing.Registry().with_resources(pairs)
    return jsonschema.Draft202012Validator(held["result.schema.json"], registry=registry)


def _one_line(outcome: Outcome, *, traced: bool) -> Iterator[str]:
    """One line says what is wrong. traced: what is noted on an adapter may come before it."""
    lines = [line for line in outcome.err.splitlines() if not PROGRESS.fullmatch(line)]
    if traced:
        lines = lines[-1:]
    if len(lines) != 1:
        yield f"message: exit status 2 with {len(lines)} lines on stderr, should be 1"
    elif not lines[0].startswith("kvspec"):
        yield "message: the line on stderr does not begin with kvspec"
