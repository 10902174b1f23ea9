"""`kvspec rerun`: a recorded history, run again."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve

from conformance.cli.contract import Report
from conformance.cli.hang import add_hang_seconds
from conformance.cli.options import add_python, input_file
from conformance.lockstep.watchdog import FIRST_SECONDS
from conformance.verdict import Scope, Verdict

if TYPE_CHECKING:
    from conformance.files.histories import Recorded
    from conformance.history import History

NAME: Final = "rerun"
HELP: Final = "run a counterexample or recorded history again"
EXAMPLES: Final = (
    "kvspec rerun .kvspec/corpus/rc_1a2b3c4d.jsonl",
    "kvspec rerun --without-plant .kvspec/corpus/rc_1a2b3c4d.jsonl",
    "kvspec rerun report.jsonl --engine mypackage.adapter:make    # a file from elsewhere",
    "kvspec rerun --trust mine.jsonl           # the engine and the Python that it names",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, the engine to run, and whether to leave out the planted bug."""
    parser.add_argument(
        "file", type=input_file, metavar="FILE", help="a history that kvspec has written"
    )
    parser.add_argument(
        "--without-plant", action="store_true", help="run on the engine with no bug planted"
    )
    parser.add_argument(
        "--engine",
        metavar="ENGINE",
        help="run this engine: MODULE:FACTORY, or the name of an installed one (default: our own, "
        "if the file names it)",
    )
    add_python(parser)
    add_hang_seconds(parser, default=FIRST_SECONDS)
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the engine and the Python that the file names, whatever they are",
    )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Run the history from the initial state; fails where it goes wrong."""
    import spec
    from conformance.files import histories
    from conformance.fuzzing import counterexamples
    from conformance.lockstep.run import Finding, replay
    from conformance.lockstep.watchdog import Watchdog
    from spec.vocabulary import InvalidInput

    recorded = histories.load(Path(arguments.file))
    recorded = _engine_chosen(recorded, arguments)
    report.geometry, report.scope = recorded.geometry, Scope.COMPLETE
    if recorded.spec_version not in {None, spec.SPEC_VERSION}:
        now = f"it is judged by {spec.SPEC_VERSION}"
        report.skip(
            f"the verdict of specification {recorded.spec_version} on this history", why=now
        )
    plant = None if arguments.without_plant else recorded.plant
    if plant is not None and recorded.python is not None:
        raise InvalidInput(
            "--python",
            seen=f"{recorded.python} for a history with the bug {plant} planted",
            allowed="this process, where bugs are planted",
            remedy="Leave --python out, or add --without-plant.",
        )

    def on_hang(history: "History", message: str) -> None:
        report.say(counterexamples.describe(Finding(history, "PROG", message)))
        report.fail(f"PROG: {message} (at step {len(history)})")
        report.abort()

    make = counterexamples.maker(recorded)
    with counterexamples.planted(plant), Watchdog(on_hang) as watchdog:
        finding = replay(make, recorded.history, seconds=arguments.hang_seconds, watchdog=watchdog)
    report.count(steps=len(recorded.history), plant=plant)
    if finding is None:
        return Verdict.HOLDS
    report.say(counterexamples.describe(finding))
    report.fail(f"{finding.clause}: {finding.message} (at step {len(finding.history)})")
    return Verdict.FAILS


def _engine_chosen(recorded: "Recorded", arguments: argparse.Namespace) -> "Recorded":
    """The history with the engine to run. Raises InvalidInput if only the file names it.

    A file may come from anybody, and the engine that it names is imported and run without limits.
    """
    from conformance.engines.registry import is_ours
    from spec.vocabulary import InvalidInput

    if arguments.engine is not None:
        return evolve(
            recorded,
            engine=arguments.engine,
            python=arguments.python,
            in_process=arguments.in_process,
        )
    chosen = evolve(
        recorded,
        python=arguments.python or recorded.python,
        in_process=arguments.in_process or recorded.in_process,
    )
    ours = is_ours(recorded.engine) and chosen.python == arguments.python
    if arguments.trust or ours:
        return chosen
    where = f"in the Python {chosen.python}" if chosen.python else "in this Python"
    python = f" --python {chosen.python}" if chosen.python else ""
    raise InvalidInput(
        str(arguments.file),
        seen=f"the engine {recorded.engine} {where}, named by the file alone",
        allowed="our own engine, or one that is named on the command line",
        remedy=f"If you trust it, add --engine {recorded.engine}{python}, or --trust.",
    )
