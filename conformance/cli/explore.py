"""`kvspec explore`: every state of the specification at a small geometry, without an engine."""

import argparse
import time
from typing import TYPE_CHECKING, Final

from conformance.cli import graphs
from conformance.cli.contract import Report
from conformance.exploration.instances import PACKED
from conformance.verdict import Verdict

if TYPE_CHECKING:
    from conformance.cli.graphs import Progress
    from conformance.exploration.graph import Graph

NAME: Final = "explore"
HELP: Final = "every reachable state and transition of the specification at a small geometry"
EXAMPLES: Final = (
    "kvspec explore --rung sharing --geometry pages=4,slots=3,page_size=2,pages_per_seq=2",
    "kvspec explore --pages open                    # any free page; states up to renaming",
    "kvspec explore --alphabet illegal              # also actions that a caller must not take",
    "kvspec explore --rung scheduling --geometry pages=2,slots=2,page_size=2,pages_per_seq=2",
    "kvspec explore --geometry pages=7,slots=3,page_size=2,pages_per_seq=3 --checkpoint e.npz",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The graph."""
    graphs.add_arguments(parser)


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Explore the graph and report what was found."""
    from conformance.exploration.graph import Graph

    graphs.check_packed(arguments, illegal_open=False)
    progress = graphs.Progress(arguments, graphs.about(arguments))
    loaded = progress.load()
    graph = loaded[0] if loaded else Graph()
    started, earlier = time.perf_counter(), graph.transitions
    try:
        if arguments.rung == PACKED:
            _allocator(arguments, report, graph, progress)
        else:
            _cells(arguments, report, graph, progress)
    finally:
        graphs.tell(
            graph,
            report,
            seconds=time.perf_counter() - started,
            earlier=earlier,
            left_out=arguments.leave_out,
        )
    if not report.failures:  # a violation ends a level in its middle
        progress.end(graph)
    return graphs.verdict(graph, report)


def _allocator(
    arguments: argparse.Namespace, report: Report, graph: "Graph", progress: "Progress"
) -> None:
    from conformance.exploration.packed_clauses import MOVE_CHECKS, STATE_CHECKS
    from conformance.exploration.packed_search import Plan, explore
    from conformance.exploration.packed_states import Allocator
    from spec import clauses

    plan = Plan(
        instance=Allocator(arguments.geometry, open_pages=arguments.pages == "open"),
        illegal=arguments.alphabet == "illegal",
        most_states=arguments.states,
    )
    checked = dict.fromkeys((*STATE_CHECKS, *MOVE_CHECKS))
    report.count(invariants=[*checked])
    left = [
        clause.id
        for clause in (*clauses.STATE_CLAUSES, *clauses.STEP_CLAUSES)
        if clause.id not in checked
    ]
    report.skip(f"{', '.join(left)} and the edges below pages", why="explore the other rungs")
    with report.progress("explore", total=None) as update:
        broken = explore(plan, graph, update=update, level_done=lambda: progress.save(graph))
    if broken is not None:
        report.fail(f"{broken.clause} is violated after {', '.join(broken.history)}")


def _cells(
    arguments: argparse.Namespace, report: Report, graph: "Graph", progress: "Progress"
) -> None:
    from conformance.exploration.search import Search, asks_progress, told
    from spec import clauses, view

    chosen = graphs.chosen(arguments)
    hidden = clauses.not_checked(view.of(chosen.machine, chosen.initial()))
    checked = [clause.id for clause in (*clauses.STATE_CLAUSES, *clauses.STEP_CLAUSES)]
    judged = [name for name in checked if name not in hidden]
    asked = ["PROG"] if asks_progress(chosen) else []
    report.count(invariants=[*judged, *asked, "RESET", "ATOMIC", *chosen.machine.edges])
    if asked:
        report.skip(
            "PROG, in states with full outputs or too few pages for the oldest request",
            why="nobody can end with full outputs, and no such request arrives",
        )
    if hidden:
        report.skip(", ".join(hidden), why=f"the rung {arguments.rung} has no such fields")
    report.skip("ATOMIC: refusals for lack of a queue entry, an output or length", why=graphs.ROOM)
    with report.progress("explore", total=None) as update:
        search = Search(chosen, graph)
        wrong = search.run(
            update=update,
            level_done=lambda: progress.save(graph),
            most_states=arguments.states,
        )
    if wrong is not None:
        report.fail(
            f"{wrong.clause} is violated after {told(chosen, graph, wrong)}: {wrong.message}"
        )
