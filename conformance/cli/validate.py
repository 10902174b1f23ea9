"""`kvspec validate`: is this recording of an engine legal, and if not, which line is the first?"""

import argparse
import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report, Scope, Verdict
from conformance.cli.options import number

if TYPE_CHECKING:
    from conformance.recording.validate import Outcome

NAME: Final = "validate"
HELP: Final = "is a recorded history legal; if not, which line is the first that is not"
EXAMPLES: Final = (
    "kvspec validate server.jsonl",
    "kvspec validate server.jsonl --shorten 60 --json v.json",
    "kvspec validate counterexample.itf.json",
)
SHOWN: Final = 20
"""Lines of the shortest part that are printed; the file has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and how long to look for a shorter one."""
    parser.add_argument(
        "file", metavar="HISTORY", help="JSON Lines as in docs/recordings.md, or a trace in ITF"
    )
    parser.add_argument(
        "--shorten",
        type=number(least=0),
        default=10.0,
        metavar="SECONDS",
        help="look that long for the shortest part that is still illegal (default 10; 0: do not)",
    )
    parser.add_argument(
        "--illegal",
        default=".kvspec/illegal",
        metavar="DIR",
        help="where the shortest part is written (default .kvspec/illegal)",
    )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Read it once; fails at the first illegal line."""
    from conformance.recording.validate import validate

    path = Path(arguments.file)
    report.scope = Scope.COMPLETE
    started = time.perf_counter()
    with report.progress("validating", total=1.0) as update:
        outcome = validate(path, update=lambda share: update(share, ""))
    seconds = time.perf_counter() - started
    report.geometry = outcome.header.geometry
    found = outcome.found
    report.count(
        engine=outcome.header.engine or None,
        events=outcome.events,
        per_second=round(outcome.events / max(seconds, 1e-9)),
        first_illegal=None if found is None else {"line": found.line, "reason": str(found)},
    )
    _not_checked(outcome, report)
    if found is None:
        return Verdict.HOLDS
    report.count(clause=found.clause, what=found.what, observed=found.seen, expected=found.expected)
    report.fail(f"{path.name} {found}")
    if arguments.shorten:
        _shorten(arguments, outcome, report)
    return Verdict.FAILS


def _not_checked(outcome: "Outcome", report: Report) -> None:
    from conformance.recording.judge import CLAUSES
    from conformance.recording.lines import FIELDS

    shows = outcome.header.shows
    partly = [field for field in FIELDS if field in outcome.observed and field not in shows]
    never = [field for field in FIELDS if field not in outcome.observed and field not in shows]
    if partly:
        why = "the recording shows some of their values and does not promise every change"
        report.skip(f"all of {', '.join(partly)}", why=why)
    if never:
        clauses = sorted({CLAUSES[field] for field in never})
        why = f"the recording does not show them (clauses {', '.join(clauses)})"
        report.skip(", ".join(never), why=why)
    report.skip("CONTENT, READ, ATT", why="a recording has no K and V in it")


def _shorten(arguments: argparse.Namespace, outcome: "Outcome", report: Report) -> None:
    """The second pass, over the part since the last reset."""
    from conformance.recording.least import MOST, shortest
    from conformance.recording.lines import header_to_text, line_to_text
    from conformance.recording.validate import lines_of

    assert outcome.found is not None
    past = lines_of(Path(arguments.file), outcome.part, outcome.found.line)
    least = shortest(outcome.header, past, whole=outcome.whole, seconds=arguments.shorten)
    if least is None:
        report.skip("a shorter recording", why=f"its past has more than {MOST} lines")
        return
    text = header_to_text(least.header) + "".join(map(line_to_text, least.lines))
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    target = Path(arguments.illegal) / f"{outcome.found.clause.lower()}_{digest}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    report.count(shortest=str(target), shortest_events=len(least.lines))
    if not least.done:
        report.skip("whether it could be shorter", why="the time was up; give --shorten more")
    first = max(1, len(least.lines) - SHOWN + 1)
    for at, line in enumerate(least.lines[first - 1 :], start=first):
        report.say(f"  {at}. {line.step}{'' if line.refused is None else ' is refused'}")
    report.say(f"  again: kvspec validate {target}")
