"""`kvspec validate`: whether a recording is legal, and its first illegal line if not."""

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report
from conformance.cli.coverage import count_covered, named, say_covered
from conformance.cli.options import File, input_file, number, output_file, output_folder
from conformance.verdict import Scope, Verdict
from spec.vocabulary import InvalidInput

if TYPE_CHECKING:
    from conformance.recordings.shrinking import Least
    from conformance.recordings.validate import Outcome

NAME: Final = "validate"
HELP: Final = "whether a recorded history is legal; the first illegal line, what it reaches"
EXAMPLES: Final = (
    "kvspec validate server.jsonl",
    "kvspec validate server.jsonl --shorten 60 --json v.json",
    "kvspec validate server.jsonl --require 'Clone: done' --require 'pool exactly full'",
    "kvspec validate counterexample.itf.json --require nothing",
    "kvspec validate - < server.jsonl",
)
ITF: Final = ".itf.json"
"""The suffix of a trace in the Informal Trace Format."""
ILLEGAL: Final = ".kvspec/illegal"
"""Not verified before the work: a legal recording writes nothing."""
SHOWN: Final = 20
"""How many lines of the shortest part are printed; the file has all."""
WIDTH: Final = 160
"""Characters of a printed line."""
NO_CELLS: Final = "a recording has no K and V in it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and how long to search for a shorter illegal part."""
    parser.add_argument(
        "file",
        type=input_file,
        metavar="HISTORY",
        help="JSON Lines as in docs/recordings.md, or a trace in ITF; -: standard input",
    )
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="ITEM",
        help="what the recording must reach, or it is undecided: an item that is printed (may be "
        "given again), everything, or nothing (default: an action refused, a full pool, a page "
        "taken again and, if there are clones, a shared page)",
    )
    parser.add_argument(
        "--itf",
        type=output_file,
        metavar="FILE",
        help="also write it as a trace in ITF; an illegal one: its shortest part",
    )
    parser.add_argument(
        "--shorten",
        type=number(least=0),
        default=10.0,
        metavar="SECONDS",
        help="seconds to search for the shortest part that is illegal (default 10; 0: no search)",
    )
    parser.add_argument(
        "--illegal",
        type=output_folder,
        metavar="DIR",
        help=f"the folder for the shortest part (default {ILLEGAL})",
    )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Read the recording once: it fails at an illegal line, or is undecided if it reaches too
    little.
    """
    from conformance.cli.spooled import spooled

    with spooled(arguments.file) as (path, name):
        return _run(path, name, arguments, report)


def _run(path: Path, name: str, arguments: argparse.Namespace, report: Report) -> Verdict:
    from conformance.recordings.required import require_known, required
    from conformance.recordings.validate import validate

    require_known(arguments.require)  # a wrong word is told before the work
    path, name = _recording(path, name, report)
    report.scope = Scope.COMPLETE
    started = time.perf_counter()
    with report.progress("validating", total=1.0) as update:
        outcome = validate(path, update=lambda share: update(share, ""), name=name)
    seconds = time.perf_counter() - started
    report.geometry = outcome.header.geometry
    found = outcome.found
    report.count(
        engine=outcome.header.engine or None,
        events=outcome.events,
        per_second=round(outcome.events / max(seconds, 1e-9)),
        first_illegal=None if found is None else {"line": found.line, "reason": str(found)},
    )
    _not_checked(outcome, arguments, report)
    coverable = required(arguments.require, outcome.coverage, outcome.header)
    missing = count_covered(outcome.coverage, coverable, report)
    if found is None:
        _write_itf(arguments.itf, path, name)
        return _judge_coverage(outcome, coverable, missing, report)
    report.count(clause=found.clause, what=found.what, observed=found.seen, expected=found.expected)
    report.fail(f"{name} {found}")
    if arguments.shorten:
        _shorten(path, arguments, outcome, report)
    else:
        _write_itf(arguments.itf, path, name)
    return Verdict.FAILS


def _judge_coverage(
    outcome: "Outcome", coverable: list[str], missing: list[str], report: Report
) -> Verdict:
    """Return `holds` only if the recording reaches everything required."""
    if not coverable:
        report.say("  nothing was required of what it reaches: every line is legal, and no more")
    say_covered(outcome.coverage, coverable, report)
    if missing:
        report.say(f"  undecided: the recording is legal and does not reach {named(missing)}")
        report.say("  record a run that does, or name other items with --require")
        report.skip("coverage that the recording does not reach", why=named(missing))
        return Verdict.UNDECIDED
    return Verdict.HOLDS


def _recording(path: Path, name: str, report: Report) -> tuple[Path, str]:
    """The file and its name; a trace in ITF is converted to a recording."""
    from conformance.files import kinds
    from conformance.files.jsonl import open_file

    with open_file(path) as file:
        if kinds.kind_of(file.read(kinds.HEAD)) != "itf" and not name.endswith(ITF):
            return path, name
    from conformance.recordings.format import write
    from conformance.recordings.itf import from_itf

    header, lines = from_itf(path, name=name)
    target = Path(".kvspec/itf") / f"{Path(name).name.removesuffix(ITF)}.jsonl"
    try:
        write(target, header, lines)
    except OSError as error:
        raise _unwritten(target, error) from None
    report.say(f"  as a recording: {target}; state n is its line n + 1")
    return target, str(target)


def _write_itf(target: File | None, path: Path, name: str) -> None:
    """Write a recording as a trace in ITF, if requested. Raises InvalidInput."""
    from conformance.files import atomic
    from conformance.recordings.format import line_from_data
    from conformance.recordings.itf import to_itf
    from conformance.recordings.validate import header_and_lines

    if target is None:
        return
    with path.open("rb") as file:
        header, lines = header_and_lines(file, name)
        trace = to_itf(header, lines.read(line_from_data))
    try:
        atomic.write(target, json.dumps(trace) + "\n")
    except OSError as error:
        raise _unwritten(target.path, error) from None


def _unwritten(target: Path, error: OSError) -> InvalidInput:
    return InvalidInput(
        str(target),
        seen=error.strerror or type(error).__name__,
        allowed="a file that can be written",
        remedy="Make room or name another.",
    )


def _not_checked(outcome: "Outcome", arguments: argparse.Namespace, report: Report) -> None:
    from conformance.lockstep.not_checked import left_to_the_engine
    from conformance.recordings.format import FIELDS, profile_of
    from conformance.recordings.required import NOTHING, SHARES
    from spec.fields import BY_NAME
    from spec.machines.actions import Allocate, Hit, Publish, Share

    shows = outcome.header.shows
    partly = [field for field in FIELDS if field in outcome.observed and field not in shows]
    never = [field for field in FIELDS if field not in outcome.observed and field not in shows]
    if partly:
        why = "the recording shows some of their values and does not promise every change"
        report.skip(f"all of {', '.join(partly)}", why=why)
    if never:
        clauses = sorted({BY_NAME[field].clause for field in never})
        why = f"the recording does not show them (clauses {', '.join(clauses)})"
        report.skip(", ".join(never), why=why)
    for kind in sorted(outcome.uncompared, key=lambda kind: kind.__name__):
        unseen = kind is Allocate
        why = "some name pages that no row shows" if unseen else "the specification has none"
        report.skip(f"results of {kind.__name__}", why=why)
    kinds = outcome.coverage.kinds
    for left, why in left_to_the_engine(profile_of(outcome.header, actions=kinds)):
        report.skip(left, why=why)
    if {Hit, Share} & kinds and not outcome.contexts:
        report.skip("PC, contexts", why="every sequence of the recording has context 0")
    if not arguments.require and SHARES.isdisjoint(kinds):
        names = ", ".join(sorted(kind.__name__ for kind in SHARES))
        report.skip("pages that are shared", why=f"the recording has none of {names}")
    if set(arguments.require) == {NOTHING}:
        report.skip("what the recording reaches", why=f"--require {NOTHING}: every line is legal")
    if Publish in kinds | outcome.header.unasked:
        report.skip("PC, what the pages of the index hold", why=NO_CELLS)
        report.skip("EVT", why="a recording has no events")
    report.skip("CONTENT, READ, ATT", why=NO_CELLS)
    report.skip("STAT", why="a recording has no statistics")


def _shorten(path: Path, arguments: argparse.Namespace, outcome: "Outcome", report: Report) -> None:
    """The second pass, over the part since the last reset."""
    from conformance.recordings.format import to_text, write
    from conformance.recordings.shrinking import MOST, shortest
    from conformance.recordings.validate import lines_of

    assert outcome.found is not None
    past = lines_of(path, outcome.part, outcome.found.line)
    least = shortest(
        outcome.header,
        past,
        first=outcome.part.first_line,
        machine=outcome.machine,
        seconds=arguments.shorten,
    )
    if least is None:
        report.skip("a shorter recording", why=f"its past has more than {MOST} lines")
        return
    digest = hashlib.sha256(to_text(least.header, least.lines).encode()).hexdigest()[:8]
    target = Path(arguments.illegal or ILLEGAL) / f"{outcome.found.clause.lower()}_{digest}.jsonl"
    report.count(shortest_events=len(least.lines))
    if len(least.lines) == outcome.found.line - outcome.part.first_line + 1:
        report.skip("a shorter recording", why="no line can be left out for the same cause")
    try:
        write(target, least.header, least.lines)
    except OSError as error:
        report.skip("whether the shortest part is illegal again", why=f"not kept: {error.strerror}")
        report.output.say(f"  not kept: {error.strerror}; these lines are the shortest part:")
        report.output.say(to_text(least.header, least.lines))
        return
    report.count(shortest=str(target))
    _write_itf(arguments.itf, target, str(target))
    if not least.done:
        report.skip("whether it could be shorter", why="the time was up; increase --shorten")
    _say_lines(least, report)
    report.say(f"  again: kvspec validate {target}")


def _say_lines(least: "Least", report: Report) -> None:
    """The last lines of the shortest part, each with its number in the recording."""
    from conformance.files.serialisation import clipped
    from conformance.recordings.format import line_to_data

    more = len(least.lines) - SHOWN
    if more > 0:
        report.say(f"  the shortest part begins with {more} lines more, which are in its file")
    for at, line in list(zip(least.numbers, least.lines, strict=True))[-SHOWN:]:
        text = json.dumps(line_to_data(line), separators=(",", ":"))
        report.say(clipped(f"  line {at}: {text}", WIDTH))
