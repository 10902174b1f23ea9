"""`kvspec plant`: the catalogue of planted bugs, and the share of them that the kit catches."""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report
from conformance.cli.options import integer, output_file
from conformance.cli.pages import put
from conformance.verdict import Scope, Verdict

if TYPE_CHECKING:
    from conformance.seeded_bugs.scoring.attempts import Attempts
    from conformance.seeded_bugs.scoring.rows import Score
    from conformance.seeded_bugs.scoring.score import Plan

NAME: Final = "plant"
HELP: Final = "plants known bugs in our engine, and scores how the kit catches them"
EXAMPLES: Final = (
    "kvspec plant --list",
    "kvspec plant --json p.json                # all of them; resumes an interrupted run",
    "kvspec plant --only CW5,RC2 --seeds 3 --methods fuzz,replay",
    "kvspec plant --write docs/score.md",
)
RESULTS: Final = ".kvspec/plant.jsonl"
SEEDS: Final = 10
STEPS: Final = 9000
"""Three turns at each level, which is five seconds or ten."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Plants and methods, the budget, and where results are kept."""
    parser.add_argument("--list", action="store_true", help="list the catalogue and stop")
    parser.add_argument("--only", metavar="ID,ID", help="these plants (default all)")
    parser.add_argument("--methods", metavar="NAME,NAME", help="these methods (default all)")
    parser.add_argument(
        "--seeds", type=integer(least=1), default=SEEDS, help=f"attempts of each (default {SEEDS})"
    )
    parser.add_argument(
        "--steps",
        type=integer(least=1),
        default=STEPS,
        help=f"steps of fuzzing per attempt; other methods take a fixed share (default {STEPS})",
    )
    parser.add_argument(
        "--results",
        type=output_file,
        metavar="FILE",
        default=RESULTS,
        help=f"the file of attempts, which are not repeated (default {RESULTS})",
    )
    parser.add_argument("--fresh", action="store_true", help="ignore all earlier attempts")
    parser.add_argument(
        "--write",
        type=output_file,
        metavar="FILE",
        help="write the score as a page of Markdown",
    )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Make the missing attempts, and compare the score with the targets."""
    from conformance.seeded_bugs.scoring import score, table
    from conformance.seeded_bugs.scoring.attempts import Attempts, stamp
    from conformance.seeded_bugs.scoring.methods import GEOMETRY

    report.scope = Scope.SAMPLED
    _say_not_checked(report)
    if arguments.list:
        return _list(report)
    plan = _plan(arguments)
    report.geometry = GEOMETRY
    path = Path(arguments.results)
    attempts = Attempts(path, stamp(table.versions(), steps=plan.steps))
    for what, why in attempts.notes():
        report.skip(what, why=why)
    if arguments.fresh:
        attempts.forget()
    try:
        left = len(plan.left(attempts))
        with report.progress("plant", total=left) as update:
            score.make_all(plan, attempts, update=update, start=score.start)
    finally:
        found = _count(plan, attempts, report)
    report.say("\n".join(table.lines(found["bugs"]) + table.blind_lines(found["blind"])))
    unwritten = None
    if arguments.write:
        today = datetime.now(UTC).date().isoformat()
        unwritten = put(arguments.write, table.page(found, date=today))
    verdict = _judge(found, report)
    if unwritten is not None:
        raise unwritten
    return verdict


def _plan(arguments: argparse.Namespace) -> "Plan":
    """The requested attempts, the engine without a bug first. Raises InvalidInput."""
    from conformance.seeded_bugs import find
    from conformance.seeded_bugs.catalogue import PLANTS
    from conformance.seeded_bugs.scoring.attempts import CLEAN
    from conformance.seeded_bugs.scoring.methods import METHODS
    from conformance.seeded_bugs.scoring.score import Plan

    names = tuple(PLANTS) if arguments.only is None else tuple(arguments.only.split(","))
    for name in names:
        find(name)
    chosen = tuple(METHODS) if arguments.methods is None else tuple(arguments.methods.split(","))
    for name in chosen:
        _require_method(name, tuple(METHODS))
    return Plan(
        names=(CLEAN, *names),
        methods={name: METHODS[name] for name in chosen},
        seeds=arguments.seeds,
        steps=arguments.steps,
    )


def _require_method(name: str, known: tuple[str, ...]) -> None:
    from spec.vocabulary import InvalidInput

    if name not in known:
        raise InvalidInput(
            "--methods", seen=name, allowed=", ".join(known), remedy="Choose some of them."
        )


def _say_not_checked(report: Report) -> None:
    from conformance.seeded_bugs.catalogue import NOT_YET
    from conformance.seeded_bugs.scoring.methods import METHODS

    for name, method in METHODS.items():
        if method.run is None:
            report.skip(name, why=f"{method.what}: this method is not scored yet")
    report.skip(", ".join(NOT_YET), why="kvspec plant --list names the missing mechanism of each")


def _list(report: Report) -> Verdict:
    """Print the catalogue by family, then the bugs that are not in it, with the reason."""
    from conformance.seeded_bugs.catalogue import FAMILIES, NOT_YET

    for family, plants in FAMILIES.items():
        report.say(f"{family}:")
        for plant in plants:
            report.say(f"  {plant.id:<5} {plant.clause:<8} {plant.mechanism}")
            report.say(f"{'':<17}{plant.thread}")
    report.say("not yet:")
    for name, why in NOT_YET.items():
        report.say(f"  {name:<5} {why}")
    report.count(
        bugs=[
            {
                "id": plant.id,
                "family": family,
                "clause": plant.clause,
                "mechanism": plant.mechanism,
                "thread": plant.thread,
            }
            for family, plants in FAMILIES.items()
            for plant in plants
        ],
        not_yet=NOT_YET,
    )
    report.scope = Scope.COMPLETE
    return Verdict.HOLDS


def _count(plan: "Plan", attempts: "Attempts", report: Report) -> "Score":
    """Sum up the attempts so far: by plant, and of the blind oracles."""
    from conformance.seeded_bugs import find
    from conformance.seeded_bugs.scoring import score, table
    from conformance.seeded_bugs.scoring.attempts import CLEAN
    from conformance.seeded_bugs.scoring.rows import Controls, Score, Targets

    attempts.refresh()
    rows = [score.row(find(name), plan, attempts) for name in plan.names if name != CLEAN]
    tries, found = score.clean_findings(plan, attempts)
    blind = score.blind(plan, attempts)
    missed = score.targets(rows) | {"blind oracles shown blind": score.not_shown_blind(blind)}
    counted = Score(
        bugs=rows,
        controls=Controls(
            clean_tries=tries,
            clean_findings=len(found),
            clean=found,
            changed=sum(row["changed"] is True for row in rows),
        ),
        score=Targets(
            plants=len(rows),
            caught=sum(row["caught"] for row in rows),
            seeds=plan.seeds,
            steps=plan.steps,
            missed=missed,
            slow=score.slow(rows),
            undecided=score.undecided(plan, attempts),
        ),
        blind=blind,
        tries_left=len(plan.left(attempts)),
        versions=table.versions(),
    )
    report.count(**counted)
    return counted


def _judge(counted: "Score", report: Report) -> Verdict:
    """Holds if the clean engine has no finding and every target is met."""
    controls, score = counted["controls"], counted["score"]
    for found in controls["clean"]:
        report.fail(f"the engine without a bug: {found}")
    for target, missed in score["missed"].items():
        if missed:
            report.fail(f"{target}: not {', '.join(missed)}")
    for name, why in score["undecided"].items():
        report.say(f"  undecided: {name}: {why}")
    if report.failures:
        return Verdict.FAILS
    open_ends = counted["tries_left"] or score["undecided"]
    return Verdict.UNDECIDED if open_ends else Verdict.HOLDS
