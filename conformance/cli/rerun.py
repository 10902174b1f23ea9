"""`kvspec rerun`: a recorded history again."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve

from conformance.cli.contract import Report, Scope, Verdict, add_python
from conformance.cli.hang import add_hang_seconds
from conformance.watchdog import FIRST_SECONDS

if TYPE_CHECKING:
    from conformance.steps import History

NAME: Final = "rerun"
HELP: Final = "take a counterexample or recorded history again"
EXAMPLES: Final = (
    "kvspec rerun .kvspec/corpus/rc_1a2b3c4d.jsonl",
    "kvspec rerun --without-plant .kvspec/corpus/rc_1a2b3c4d.jsonl",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and whether to leave out the bug that was planted."""
    parser.add_argument("file", metavar="FILE", help="a history that kvspec has written")
    parser.add_argument(
        "--without-plant", action="store_true", help="run on the engine with no bug planted"
    )
    add_python(parser)
    add_hang_seconds(parser, default=FIRST_SECONDS)


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Take the history from the initial state; fails where it goes wrong."""
    import spec
    from conformance import counterexample, histories
    from conformance.finding import Finding, replay
    from conformance.watchdog import Watchdog
    from spec.vocabulary import InvalidInput

    recorded = histories.load(Path(arguments.file))
    recorded = evolve(
        recorded,
        python=arguments.python or recorded.python,
        in_process=arguments.in_process or recorded.in_process,
    )
    report.geometry, report.scope = recorded.geometry, Scope.COMPLETE
    if recorded.spec_version not in {None, spec.SPEC_VERSION}:
        now = f"it is judged by {spec.SPEC_VERSION}"
        report.skip(f"what specification {recorded.spec_version} says of this history", why=now)
    plant = None if arguments.without_plant else recorded.plant
    if plant is not None and recorded.python is not None:
        raise InvalidInput(
            "--python",
            seen=f"{recorded.python} for a history with the bug {plant} planted",
            allowed="this process, where bugs are planted",
            remedy="Leave --python out, or add --without-plant.",
        )

    def on_hang(history: "History", message: str) -> None:
        report.say(counterexample.describe(Finding(history, "PROG", message)))
        report.fail(f"PROG: {message} (at step {len(history)})")
        report.abort()

    make = counterexample.maker(recorded)
    with counterexample.planted(plant), Watchdog(on_hang) as watchdog:
        finding = replay(make, recorded.history, seconds=arguments.hang_seconds, watchdog=watchdog)
    report.count(steps=len(recorded.history), plant=plant)
    if finding is None:
        return Verdict.HOLDS
    report.say(counterexample.describe(finding))
    report.fail(f"{finding.clause}: {finding.message} (at step {len(finding.history)})")
    return Verdict.FAILS
