"""`kvspec diff`: two engines, or two versions of one, against each other and the specification."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report
from conformance.cli.fuzz import (
    GEOMETRY,
    SHRINK_SECONDS,
    count,
    judge_coverage,
    main_geometry,
    sizes_from,
)
from conformance.cli.hang import add_hang_seconds
from conformance.cli.options import add_geometry_alone, add_in_process, number, output_folder
from conformance.files.histories import CORPUS
from conformance.isolation.placement import factory_of, runs_here
from conformance.runtime.clock import Clock
from conformance.verdict import Verdict

if TYPE_CHECKING:
    from conformance.fuzzing.campaign import Run
    from conformance.history import History
    from conformance.lockstep.differential import PairFactory
    from conformance.lockstep.run import Finding
    from conformance.lockstep.watchdog import Watchdog

NAME: Final = "diff"
HELP: Final = "two engines on the same random histories, each held to the spec"
EXAMPLES: Final = (
    "kvspec diff mine.adapter:make mine.faster:make --seconds 60",
    "kvspec diff blocks blocks --python-b ~/next/.venv/bin/python    # two versions of one",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two engines, their interpreters, their sizes and the budget."""
    for name in ("A", "B"):
        parser.add_argument(name, help="an engine, as --engine of kvspec fuzz names it")
    for name in ("A", "B"):
        parser.add_argument(
            f"--python-{name.lower()}", metavar="PATH", help=f"run {name} in this Python"
        )
    add_in_process(parser)
    add_geometry_alone(parser, default=GEOMETRY)
    parser.add_argument(
        "--seconds",
        type=number(least=0.1),
        default=60.0,
        help="wall time of the run, without the warm-up at each setting (default 60)",
    )
    add_hang_seconds(parser)
    parser.add_argument(
        "--corpus",
        type=output_folder,
        metavar="FOLDER",
        default=CORPUS,
        help=f"the folder of findings ({CORPUS})",
    )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Fuzz the pair; fails if one engine violates a clause. Legal differences are listed."""
    clock = Clock()  # before what is imported here
    report.geometry = main_geometry(arguments)
    from conformance.fuzzing import campaign
    from conformance.fuzzing.settings import make
    from conformance.lockstep.differential import PairFactory
    from conformance.lockstep.not_checked import not_checked
    from conformance.lockstep.run import Finding
    from conformance.lockstep.watchdog import Watchdog, patience_of
    from conformance.protocol import Attends, Counts

    pairs = PairFactory(
        factory_of(arguments.A, python=arguments.python_a, in_process=arguments.in_process),
        factory_of(arguments.B, python=arguments.python_b, in_process=arguments.in_process),
    )
    state = campaign.Run()

    def on_hang(history: "History", message: str) -> None:
        count(state, report)
        finding = state.finding or Finding(history, "PROG", message)
        _blame(state, finding, pairs, arguments, report)
        report.abort()

    with Watchdog(on_hang) as watchdog:
        try:
            with report.progress("diff", total=arguments.seconds) as update:
                campaign.run(
                    pairs,
                    campaign.Options(
                        geometry=main_geometry(arguments),
                        alone=arguments.geometry is not None,
                        seed=arguments.seed,
                        seconds=arguments.seconds,
                        patience=patience_of(arguments.hang_seconds),
                    ),
                    report=state,
                    update=update,
                    watchdog=watchdog,
                    clock=clock,
                )
        finally:
            count(state, report)
            report.count(differences=dict(pairs.seen.counts))
        if state.finding is not None:
            _keep(state, state.finding, pairs, arguments, report, watchdog)
            return Verdict.FAILS
    _say_differences(pairs, report)
    for name, factory in (("A", pairs.a), ("B", pairs.b)):
        for what, why in not_checked(make(factory, *state.fullest)):
            report.skip(f"{name}: {what}", why=why)
    pair = make(pairs, *state.fullest)
    if not isinstance(pair, Attends):
        report.skip("B: READ, by driving attention", why="it is driven only if A has attend")
    if not isinstance(pair, Counts):
        report.skip("B: STAT", why="statistics are compared only if A has them")
    report.skip("requests served in one call", why="two engines together take single actions")
    return judge_coverage(state, pair, report, given=arguments.geometry is not None)


def _say_differences(pairs: "PairFactory", report: Report) -> None:
    """Print each legal difference, how often it occurred, and the shortest history to it."""
    from conformance.fuzzing.shrinking import shrink_difference

    if not pairs.seen.counts:
        report.say("  no difference was seen")
    for kind, times in sorted(pairs.seen.counts.items()):
        report.say(f"  legal: {kind} ({times} steps), for example after")
        for number_, step in enumerate(shrink_difference(pairs, kind), start=1):
            report.say(f"    {number_}. {step}")


def _keep(
    state: "Run",
    finding: "Finding",
    pairs: "PairFactory",
    arguments: argparse.Namespace,
    report: Report,
    watchdog: "Watchdog",
) -> None:
    """Shrink the finding on the failing engine alone."""
    from functools import partial

    from conformance.fuzzing.settings import make
    from conformance.fuzzing.shrinking import shrink
    from conformance.lockstep.watchdog import patience_of

    assert state.setting is not None
    name = pairs.seen.fault
    here = runs_here(
        getattr(arguments, name),
        python=getattr(arguments, f"python_{name.lower()}"),
        in_process=arguments.in_process,
    )
    with report.progress("shrink", total=None):
        finding = shrink(
            partial(make, pairs.at_fault, *state.setting),
            finding,
            seconds=SHRINK_SECONDS,
            step_seconds=patience_of(arguments.hang_seconds).after_warm_up(
                here=here, warm_up=state.warm_up_seconds
            ),
            watchdog=watchdog,
        )
    _blame(state, finding, pairs, arguments, report)


def _blame(
    state: "Run",
    finding: "Finding",
    pairs: "PairFactory",
    arguments: argparse.Namespace,
    report: Report,
) -> None:
    """Print a finding as one of the failing engine, and write its files for that engine."""
    from conformance.files.histories import Recorded
    from conformance.fuzzing import counterexamples

    assert state.setting is not None
    name = pairs.seen.fault
    report.say(f"{name} goes wrong: {getattr(arguments, name)}")
    recorded = Recorded(
        engine=getattr(arguments, name),
        **state.setting._asdict(),
        history=finding.history,
        clause=finding.clause,
        message=finding.message,
        python=getattr(arguments, f"python_{name.lower()}"),
        in_process=arguments.in_process,
    )
    report.count(at_fault=name)
    counterexamples.report_finding(
        recorded, finding, Path(arguments.corpus), report, sizes=sizes_from(arguments)
    )
