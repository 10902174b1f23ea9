"""`kvspec replay`: real serving traffic through an engine in lockstep with the specification."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report
from conformance.cli.hang import add_hang_seconds
from conformance.cli.options import add_engine, input_file, integer, output_folder
from conformance.files.histories import CORPUS
from conformance.isolation.placement import factory_of
from conformance.lockstep.watchdog import LARGE_SECONDS
from conformance.verdict import Scope, Verdict

if TYPE_CHECKING:
    from conformance.files.histories import Recorded
    from conformance.history import History
    from conformance.lockstep.run import Finding
    from conformance.lockstep.watchdog import Watchdog
    from conformance.protocol import Engine, Factory
    from conformance.traffic.replay import Tally
    from conformance.traffic.scheduled import Scheduled
    from spec.view import View
    from spec.vocabulary import Geometry, Limits

NAME: Final = "replay"
HELP: Final = "real serving traffic through an engine, the spec in lockstep"
EXAMPLES: Final = (
    "kvspec replay azure_conv_2023.csv --format azure --limit 500",
    "kvspec replay mooncake_conversation.jsonl --format mooncake --limit 200 --json r.json",
    "kvspec replay azure_conv_2023.csv --format azure --limit 500 --preempt --pages 20",
    "kvspec replay azure_conv_2023.csv --format azure --limit 500 --preempt --pages 20 --lag 2",
)
ENGINE: Final = "conformance.engines.ours:make_without_cells"
SHRINK_SECONDS: Final = 60.0
PAGE_SIZES: Final = {"azure": 16, "mooncake": 1}
"""The default by format. A block of Mooncake becomes a page: larger pages make longer prompts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The trace, its format, and the sizes of the engine."""
    parser.add_argument("trace", type=input_file, metavar="TRACE", help="a trace file")
    parser.add_argument(
        "--format", required=True, choices=sorted(PAGE_SIZES), help="the format of the trace"
    )
    parser.add_argument(
        "--skip", type=integer(least=0), default=0, help="requests to leave out at the start"
    )
    parser.add_argument("--limit", type=integer(least=1), help="requests to serve (default all)")
    parser.add_argument(
        "--new-tokens-divided-by",
        type=integer(least=1),
        metavar="N",
        help="divisor of the numbers of tokens to generate (default that of the prompts)",
    )
    parser.add_argument(
        "--slots", type=integer(least=1), default=16, help="sequence slots (default 16)"
    )
    defaults = ", ".join(f"{size} for {name}" for name, size in PAGE_SIZES.items())
    parser.add_argument(
        "--page-size", type=integer(least=1), help=f"cells in a page (default {defaults})"
    )
    parser.add_argument(
        "--pages",
        type=integer(least=1),
        help="pages of the pool (default: those of twice the longest request, or 12 for each slot)",
    )
    parser.add_argument(
        "--preempt",
        action="store_true",
        help="begin requests before their worst case fits, and preempt the newest for pages",
    )
    parser.add_argument(
        "--lag",
        type=integer(least=0),
        metavar="N",
        help="with --preempt: dispatch each step while up to N earlier ones are in flight, 0 to 2",
    )
    parser.add_argument(
        "--corpus",
        type=output_folder,
        metavar="FOLDER",
        default=CORPUS,
        help="the folder of findings",
    )
    add_engine(parser, default=ENGINE)
    add_hang_seconds(parser, default=LARGE_SECONDS)


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Serve the whole trace; holds if nothing differed and no page leaked."""
    from conformance.lockstep.run import Finding, opened
    from conformance.lockstep.watchdog import Watchdog
    from conformance.protocol import EngineFailed
    from conformance.traffic import replay
    from conformance.traffic.traces import lengths_divided_by
    from spec.vocabulary import CleanupMode

    _check_lag(arguments)
    factory = factory_of(arguments.engine, python=arguments.python, in_process=arguments.in_process)
    path = Path(arguments.trace)
    page_size = arguments.page_size or PAGE_SIZES[arguments.format]
    sizes = {
        "page_size": page_size,
        "skip": arguments.skip,
        "limit": arguments.limit,
        "new_divisor": arguments.new_tokens_divided_by,
    }
    geometry, limits, totals = replay.geometry_for(
        path,
        arguments.format,
        slots=arguments.slots,
        pages=arguments.pages,
        preempts=arguments.preempt,
        **sizes,
    )
    report.geometry = geometry
    whole = arguments.limit is None and not arguments.skip
    report.scope = Scope.COMPLETE if whole else Scope.SAMPLED
    report.say(f"  {totals.requests} requests, {totals.prompt_tokens} prompt tokens, "
               f"{totals.new_tokens} to generate, the longest {totals.longest}")  # fmt: skip
    try:
        engine = opened(partial(factory, geometry, limits, CleanupMode.INCREMENTAL))
    except EngineFailed as error:
        report.fail(f"{error.clause}: {error}")
        return Verdict.FAILS
    _say_what_is_hidden(engine.observe(), report)
    if arguments.preempt:
        _may_be_scheduled(engine, arguments.lag, report)
    shares = not arguments.preempt and _shares(engine, arguments.format, report)
    divisor = lengths_divided_by(arguments.format, page_size=page_size)
    new_divisor = arguments.new_tokens_divided_by or divisor
    report.count(lengths_divided_by=divisor, new_tokens_divided_by=new_divisor)
    report.skip(
        "the lengths and times of the trace",
        why=f"prompts are divided by {divisor}, and new tokens by {new_divisor}; requests come in "
        "its order without its times",
    )
    tally = replay.Tally()
    traffic = replay.requests(path, arguments.format, **sizes)

    def on_hang(history: "History", message: str) -> None:
        # What was found before is what is being shrunk: it is kept as it stands.
        finding = tally.finding or Finding(history, "PROG", message)
        _count(tally, report)
        _write(finding, geometry, limits, arguments, report)
        report.abort()

    with Watchdog(on_hang) as watchdog:
        try:
            with report.progress("replay", total=totals.requests) as update:
                replay.replay(
                    engine,
                    traffic,
                    tally=tally,
                    update=lambda done: update(done, f"{tally.new_tokens} tokens generated"),
                    step_seconds=arguments.hang_seconds,
                    watchdog=watchdog,
                    hits=shares,
                    preempts=arguments.preempt,
                    lag=arguments.lag,
                )
        finally:
            _count(tally, report)
        if tally.finding is not None:
            if tally.finding.message in replay.NOT_OF_A_STEP:
                _write(tally.finding, geometry, limits, arguments, report)
            else:
                _keep(tally.finding, factory, geometry, limits, arguments, report, watchdog)
            return Verdict.FAILS
    _require_none_left(tally, report)
    return Verdict.FAILS if report.failures else Verdict.HOLDS


def _check_lag(arguments: argparse.Namespace) -> None:
    """Raise InvalidInput for a lag that no turn of the scheduler has."""
    from spec.vocabulary import LAG, InvalidInput

    if arguments.lag is None or (arguments.preempt and arguments.lag <= LAG):
        return
    raise InvalidInput(
        "--lag",
        seen=f"{arguments.lag}" + " without --preempt" * (not arguments.preempt),
        allowed=f"0 to {LAG}, with --preempt",
        remedy="Add --preempt: the scheduler dispatches the steps."
        if not arguments.preempt
        else "Change it.",
    )


def _require_none_left(tally: "Tally", report: Report) -> None:
    if tally.leaked_pages:
        report.fail(f"CONS: {tally.leaked_pages} pages are in use after the last request")
    if tally.held_pages:
        report.fail(f"CONS: {tally.held_pages} pages are held after the last step")


def _say_what_is_hidden(shown: "View", report: Report) -> None:
    if shown.counts is None:
        report.skip("pages that leak", why="the engine does not show counts")
    if shown.cells is None:
        report.skip(
            "CONTENT, READ and FRAME cell by cell",
            why="cells are not read back; with the exact model a wrong cell changes a token",
        )
    if shown.geometry.page_size == 1:
        report.skip("pages that are full in part", why="a page has one cell; see --page-size")


def _shares(engine: "Engine", format: str, report: Report) -> bool:
    """Whether pages are found again by their content; if not, the report says why."""
    from conformance.traffic import hits

    lacks = sorted(kind.__name__ for kind in hits.NEEDED - engine.profile.actions)
    why = f"the engine does not offer {', '.join(lacks)}" if lacks else ""
    if format != "mooncake":
        why = "this format names no prefixes"
    if why:
        report.skip("PC, pages that are found again by their content", why=why)
    else:
        report.skip("Submit and Admit", why="requests begin with what is found of their prompts")
    return not why


def _may_be_scheduled(engine: "Engine", lag: int | None, report: Report) -> None:
    """Say what the scheduler leaves unchecked.

    Raises InvalidInput if an engine does not offer the actions that the scheduler needs.
    """
    from spec import scheduler
    from spec.machines.actions import TakeOutputs
    from spec.vocabulary import InvalidInput

    machine = engine.profile.machine
    finds_pages = "prefix" in machine.names
    needed = scheduler.actions_of(machine, lag=lag) | {TakeOutputs}
    lacks = sorted(kind.__name__ for kind in needed - engine.profile.actions)
    option = "--preempt" if lag is None else "--lag"
    if lacks:
        raise InvalidInput(
            option,
            seen=f"an engine without {', '.join(lacks)}",
            allowed=f"an engine with {', '.join(sorted(kind.__name__ for kind in needed))}",
            remedy=f"Leave out {option}, or offer these actions.",
        )
    report.skip("Submit and Admit", why="the scheduler begins the requests")
    if not finds_pages:
        report.skip(
            "PC, pages that are found again by their content", why="the engine has no index"
        )


def _count(tally: "Tally", report: Report) -> None:
    report.count(
        requests=tally.requests,
        tokens=tally.prompt_tokens + tally.new_tokens,
        prompt_tokens=tally.prompt_tokens,
        new_tokens=tally.new_tokens,
        steps=tally.steps,
        refused=tally.refused,
        leaked_pages=tally.leaked_pages,
        per_second=round(tally.steps / tally.seconds, 1) if tally.seconds else 0.0,
    )
    if tally.scheduled is not None:
        did = tally.scheduled
        report.count(
            rounds=did.rounds,
            tokens_per_round=round(did.tokens / did.rounds, 2) if did.rounds else 0.0,
            preempted=did.preempted,
            preemptions=did.preemptions,
            most_overtaken=did.overtaken,
            evicted=tally.evicted,
        )
        report.say(f"  {did.preempted / (tally.requests or 1):.1%} of the requests were preempted; "
                   f"the worst off was overtaken in {did.overtaken} rounds")  # fmt: skip
        if did.lag is not None:
            _count_flights(tally, did, report)
    if tally.sharing is not None:
        of = tally.sharing
        report.count(blocks=of.blocks, hit=of.hit, hit_unbounded=of.known, evicted=tally.evicted)
        whole = of.blocks or 1
        report.say(f"  {of.hit / whole:.1%} of {of.blocks} blocks hit; an index without bound "
                   f"would hit {of.known / whole:.1%}; {tally.evicted} pages evicted")  # fmt: skip


def _count_flights(tally: "Tally", did: "Scheduled", report: Report) -> None:
    report.count(
        lag=did.lag,
        most_in_flight=did.most_in_flight,
        most_held_pages=did.most_held,
        most_held_by_steps_alone=did.most_held_alone,
        held_pages_left=tally.held_pages,
    )
    report.say(f"  {did.most_in_flight} steps in flight and {did.most_held} pages held at most; "
               f"{tally.held_pages} pages held at the end")  # fmt: skip


def _keep(
    found: "Finding",
    factory: "Factory",
    geometry: "Geometry",
    limits: "Limits",
    arguments: argparse.Namespace,
    report: Report,
    watchdog: "Watchdog",
) -> None:
    """Shrink the finding, print it, and write its history and its test."""
    from conformance.fuzzing import counterexamples
    from conformance.fuzzing.shrinking import shrink
    from spec.vocabulary import CleanupMode

    def make() -> "Engine":
        return factory(geometry, limits, CleanupMode.INCREMENTAL)

    with report.progress("shrink", total=None):
        finding = shrink(
            make,
            found,
            seconds=SHRINK_SECONDS,
            step_seconds=arguments.hang_seconds,
            watchdog=watchdog,
        )
    recorded = _recorded(finding, geometry, limits, arguments)
    counterexamples.report_finding(
        recorded, finding, Path(arguments.corpus), report, sizes="fitted to the trace"
    )


def _write(
    finding: "Finding",
    geometry: "Geometry",
    limits: "Limits",
    arguments: argparse.Namespace,
    report: Report,
) -> None:
    """Record a finding that is not shrunk, since it is too long to print, and write its files."""
    from conformance.fuzzing import counterexamples

    steps = len(finding.history)
    report.fail(f"{finding.clause}: {finding.message} (after {steps} steps)")
    report.count(shrunk_steps=steps)
    recorded = _recorded(finding, geometry, limits, arguments)
    counterexamples.keep(recorded, Path(arguments.corpus), report)


def _recorded(
    finding: "Finding", geometry: "Geometry", limits: "Limits", arguments: argparse.Namespace
) -> "Recorded":
    from conformance.files.histories import Recorded
    from spec.vocabulary import CleanupMode

    return Recorded(
        engine=arguments.engine,
        geometry=geometry,
        limits=limits,
        cleanup=CleanupMode.INCREMENTAL,
        history=finding.history,
        clause=finding.clause,
        message=finding.message,
        python=arguments.python,
        in_process=arguments.in_process,
    )
