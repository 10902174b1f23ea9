"""`kvspec fuzz`: stateful fuzzing of an engine in lockstep with the specification."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report
from conformance.cli.coverage import count_covered, count_possible, named, say_covered
from conformance.cli.hang import add_hang_seconds
from conformance.cli.options import add_engine, add_geometry_alone, number, output_folder
from conformance.engines.registry import OUR_ENGINE
from conformance.files.geometries import geometry_to_text, parse_geometry
from conformance.files.histories import CORPUS
from conformance.isolation.placement import factory_of, runs_here
from conformance.runtime.clock import Clock
from conformance.verdict import Scope, Verdict
from spec.vocabulary.geometry import Geometry

if TYPE_CHECKING:
    from conformance.files.histories import Recorded
    from conformance.fuzzing.campaign import Options, Run
    from conformance.fuzzing.settings import Setting
    from conformance.history import History
    from conformance.lockstep.run import Finding
    from conformance.lockstep.watchdog import Watchdog
    from conformance.protocol import Engine, Factory

NAME: Final = "fuzz"
HELP: Final = "random histories on an engine in lockstep with the spec; shrinks failures"
EXAMPLES: Final = (
    "kvspec fuzz --seconds 60",
    "kvspec fuzz --plant CW5                        # plant a bug in our engine and watch",
    "kvspec fuzz --engine mypackage.adapter:make    # your engine; see docs/adapters.md",
    "kvspec fuzz --engine mypackage.adapter:make --python ~/engine/.venv/bin/python",
    "kvspec fuzz --engine myengine                  # by the name that an installed package gives",
    "kvspec fuzz --geometry pages=8,slots=3,page_size=2,pages_per_seq=4 --seed 7 --json f.json",
)
SHRINK_SECONDS: Final = 30.0
GEOMETRY: Final = "pages=16,slots=4,page_size=4,pages_per_seq=4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The engine, its sizes, the budget, and where findings are kept."""
    add_geometry_alone(parser, default=GEOMETRY)
    add_engine(parser)
    parser.add_argument(
        "--seconds",
        type=number(least=0.1),
        default=60.0,
        help="wall time of the run, without the warm-up at each setting (default 60)",
    )
    add_hang_seconds(parser)
    parser.add_argument(
        "--plant", metavar="ID", help="plant one bug of the catalogue in our engine"
    )
    parser.add_argument(
        "--corpus",
        type=output_folder,
        metavar="FOLDER",
        default=CORPUS,
        help=f"the folder of findings, which are replayed first (default {CORPUS})",
    )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Replay the corpus, then fuzz until the time is up or something fails."""
    clock = Clock()  # before what is imported here
    from conformance.fuzzing import campaign, counterexamples
    from conformance.fuzzing.settings import make
    from conformance.lockstep.run import Finding
    from conformance.lockstep.watchdog import Watchdog, patience_of

    _require_our_engine(arguments)
    report.geometry = main_geometry(arguments)
    factory = factory_of(arguments.engine, python=arguments.python, in_process=arguments.in_process)
    corpus = Path(arguments.corpus)
    state, patience = campaign.Run(), patience_of(arguments.hang_seconds)
    options = campaign.Options(
        geometry=report.geometry,
        alone=arguments.geometry is not None,
        seed=arguments.seed,
        seconds=arguments.seconds,
        patience=patience,
    )

    def on_hang(history: "History", message: str) -> None:
        # What was found before is what is being shrunk: it is kept as it stands.
        finding = state.finding or Finding(history, "PROG", message)
        count(state, report)
        assert state.setting is not None
        recorded = _recorded(state.setting, finding, arguments)
        counterexamples.report_finding(
            recorded, finding, Path(arguments.corpus), report, sizes=sizes_from(arguments)
        )
        report.abort()

    with counterexamples.planted(arguments.plant), Watchdog(on_hang) as watchdog:
        _replay_corpus(corpus, factory, options, arguments, report)
        try:
            with report.progress("fuzz", total=arguments.seconds) as update:
                campaign.run(
                    factory,
                    options,
                    report=state,
                    update=update,
                    watchdog=watchdog,
                    clock=clock,
                )
        finally:
            count(state, report)
            for what, why in state.not_checked:
                report.skip(what, why=why)
            for wrong in state.programs:
                report.fail(f"JIT: {wrong}")
        if state.finding is not None:
            _keep(state, factory, arguments, report, watchdog)
            return Verdict.FAILS
        engine = make(factory, *state.fullest)
        return judge_coverage(state, engine, report, given=arguments.geometry is not None)


def main_geometry(arguments: argparse.Namespace) -> Geometry:
    """The geometry that was asked for, or the first of those that the kit chooses."""
    given: Geometry | None = arguments.geometry
    return given or parse_geometry(GEOMETRY)


def sizes_from(arguments: argparse.Namespace) -> str:
    """Where the geometry of a finding comes from."""
    from conformance.fuzzing.settings import geometry_source

    return geometry_source(given=arguments.geometry is not None)


def _require_our_engine(arguments: argparse.Namespace) -> None:
    from conformance.seeded_bugs import find
    from spec.vocabulary import InvalidInput

    if arguments.plant is None:
        return
    if arguments.engine != OUR_ENGINE or arguments.python is not None:
        raise InvalidInput(
            "--plant",
            seen=f"--engine {arguments.engine} --python {arguments.python}",
            allowed="our own engine in this process, where the catalogue's bugs are planted",
            remedy="Leave --engine and --python out.",
        )
    find(arguments.plant)


def _replay_corpus(
    folder: Path,
    factory: "Factory",
    options: "Options",
    arguments: argparse.Namespace,
    report: Report,
) -> None:
    """Run the kept histories of this engine again: each that still fails is a failure."""
    from conformance.fuzzing import counterexamples
    from conformance.fuzzing.settings import chooses
    from conformance.lockstep.run import replay
    from conformance.lockstep.watchdog import Watchdog

    taken: list[Path] = []
    chosen = chooses(factory, options.geometry, alone=options.alone)

    def on_hang(history: "History", message: str) -> None:
        report.fail(f"{taken[-1]}: PROG: {message} (at step {len(history)})")
        report.abort()

    for path, recorded in counterexamples.corpus(folder, report):
        made_by = (recorded.engine, recorded.python)
        if made_by != (arguments.engine, arguments.python) or not chosen(
            recorded.geometry, recorded.limits
        ):
            report.skip(path.name, why="recorded with another engine or sizes; use kvspec rerun")
            continue
        taken.append(path)
        again = counterexamples.maker(recorded, factory)
        with Watchdog(on_hang) as watchdog:
            finding = replay(
                again, recorded.history, seconds=options.patience.first, watchdog=watchdog
            )
        if finding is not None:
            report.fail(f"{path}: {finding.clause}: {finding.message}")
    report.count(corpus_replayed=len(taken))


def count(state: "Run", report: Report) -> None:
    """Copy the counts of a run into the report."""
    ceiling = state.idle.rate if state.idle else 0.0
    report.count(
        geometries=list(sizes_of(state)),
        steps=state.steps + state.warmup_steps,
        actions_taken=sum(state.coverage.actions.values()),
        steps_per_second=round(state.rate, 1),
        ceiling_steps_per_second=round(ceiling, 1),
        of_ceiling=round(state.rate / ceiling, 3) if ceiling else 0.0,
        actions=dict(sorted(state.coverage.actions.items())),
        outcomes=dict(sorted(state.coverage.outcomes.items())),
        corners=dict(sorted(state.coverage.corners.items())),
        compilations=state.compilations,
        left_out_seconds=round(state.left_out_seconds, 1),
    )
    if state.active_seconds:
        shares = state.shares.items()
        report.count(**{f"share_of_{part}": round(share, 3) for part, share in shares})


def sizes_of(state: "Run") -> dict[str, None]:
    """The geometries of a run, as text, each once."""
    return dict.fromkeys(geometry_to_text(one.geometry) for one in state.settings)


def judge_coverage(state: "Run", engine: "Engine", report: Report, *, given: bool) -> Verdict:
    """Return `holds` only if all required coverage was reached. given: whether the geometry was."""
    coverable = state.coverable(engine)
    report.scope = Scope.SAMPLED
    for sizes in sizes_of(state):
        report.say(f"  at {sizes}")
    missing = count_covered(state.coverage, coverable, report)
    say_covered(state.coverage, coverable, report)
    count_possible(state, engine, report)
    if report.failures:
        return Verdict.FAILS
    if missing:
        advice = state.advice(missing, engine, given=given)
        report.say(f"  undecided: {len(missing)} required items were not reached; {advice}")
        report.skip("coverage that was not reached", why=named(missing))
        return Verdict.UNDECIDED
    return Verdict.HOLDS


def _keep(
    state: "Run",
    factory: "Factory",
    arguments: argparse.Namespace,
    report: Report,
    watchdog: "Watchdog",
) -> None:
    """Shrink the finding, print it, and write its history and its test."""
    from conformance.fuzzing import counterexamples
    from conformance.fuzzing.shrinking import shrink_at
    from conformance.lockstep.watchdog import patience_of

    assert state.finding is not None
    assert state.setting is not None
    patience = patience_of(arguments.hang_seconds)
    here = runs_here(arguments.engine, python=arguments.python, in_process=arguments.in_process)
    with report.progress("shrink", total=None):
        setting, finding = shrink_at(
            factory,
            state.setting,
            state.finding,
            seconds=SHRINK_SECONDS,
            step_seconds=patience.after_warm_up(here=here, warm_up=state.warm_up_seconds),
            watchdog=watchdog,
        )
    recorded = _recorded(setting, finding, arguments)
    sizes = sizes_from(arguments) + ", with fewer pages" * (setting != state.setting)
    counterexamples.report_finding(recorded, finding, Path(arguments.corpus), report, sizes=sizes)


def _recorded(setting: "Setting", finding: "Finding", arguments: argparse.Namespace) -> "Recorded":
    from conformance.files.histories import Recorded

    return Recorded(
        engine=arguments.engine,
        **setting._asdict(),
        history=finding.history,
        plant=arguments.plant,
        clause=finding.clause,
        message=finding.message,
        python=arguments.python,
        in_process=arguments.in_process,
    )
