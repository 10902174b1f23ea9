"""`kvspec refine`: the jitted engine on every transition of the specification's graph."""

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from conformance.cli import graphs
from conformance.cli.contract import Report
from conformance.cli.options import integer
from conformance.exploration.instances import PACKED, SYMMETRIC
from conformance.refinement.scopes import SCOPES
from conformance.verdict import Scope, Verdict

if TYPE_CHECKING:
    from conformance.cli.graphs import Progress
    from conformance.lockstep.watchdog import Watchdog
    from conformance.refinement.run import Refinement
    from conformance.refinement.vmapped import Checker, Tally

NAME: Final = "refine"
HELP: Final = "our jitted engine on every transition of the specification's graph"
EXAMPLES: Final = (
    "kvspec refine --rung sharing --geometry pages=4,slots=3,page_size=2,pages_per_seq=2",
    "kvspec refine --rung lifecycle --geometry pages=2,slots=2,page_size=2,pages_per_seq=1",
    "kvspec refine --alphabet legal --json r.json   # leave out what a caller must not ask",
    "kvspec refine --plant RC2                      # plant a bug and get a shortest history",
    "kvspec refine --pages open                     # states up to renaming, each in 8 random ones",
)

RUNGS: Final = tuple(dict.fromkeys(scope.rung for scope in SCOPES))
"""The rungs that our engine is refined on: it offers all their actions."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The graph, how many transitions are taken singly, and a bug to plant."""
    graphs.add_arguments(parser, rungs=RUNGS, alphabet="illegal")
    parser.add_argument(
        "--unbatched",
        type=integer(least=0),
        default=10_000,
        metavar="N",
        help="transitions repeated through the entry points as shipped (default 10000)",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="instance allocator: also time the same check of one transition at a time",
    )
    parser.add_argument(
        "--plant", metavar="ID", help="plant one bug of the catalogue in our engine"
    )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Explore and check in one pass."""
    from conformance.exploration.graph import Graph
    from conformance.fuzzing import counterexamples
    from conformance.lockstep.watchdog import Watchdog
    from conformance.refinement.run import Refinement
    from conformance.refinement.vmapped import Tally

    def on_hang(_history: object, _message: str) -> None:
        report.fail("PROG: a batch does not return from compiled code; kvspec fuzz shrinks a hang")
        report.abort()

    graphs.check_packed(arguments, illegal_open=True)
    more = {"plant": arguments.plant, "seed": arguments.seed if _renamed(arguments) else None}
    progress = graphs.Progress(arguments, graphs.about(arguments) | more)
    loaded = progress.load()
    state = Refinement(graph=Graph(), tally=Tally())
    if loaded is not None:
        graph, extra = loaded
        held, names = (_tally(extra, name, arguments) for name in ("tally", "names"))
        state = Refinement(graph=graph, tally=held, names=names)
    started, earlier = time.perf_counter(), state.graph.transitions
    try:
        with counterexamples.planted(arguments.plant), Watchdog(on_hang) as watchdog:
            _refine(arguments, report, state, progress, watchdog)
    finally:
        seconds = time.perf_counter() - started
        _tell(arguments, report, state, seconds=seconds, earlier=earlier)
    _require_all_checked(arguments, report, state)
    if state.broken is None:  # a violation ends a level in its middle
        progress.end(state.graph, lambda: state.extra)
    scope = Scope.UP_TO_RENAMING if _renamed(arguments) else Scope.COMPLETE
    return graphs.verdict(state.graph, report, scope)


def _renamed(arguments: argparse.Namespace) -> bool:
    """Whether states are taken up to renaming and injected in several renamings."""
    return bool(arguments.pages == "open" and arguments.rung in (PACKED, *SYMMETRIC))


def _tally(extra: dict[str, object], name: str, arguments: argparse.Namespace) -> "Tally":
    """Counts of checks in a checkpoint, by their name. Raises InvalidInput."""
    from conformance.files.serialisation import clipped, decoder
    from conformance.refinement.vmapped import Tally
    from spec.vocabulary import InvalidInput

    try:
        if {*extra} != {"tally", "names"}:
            raise ValueError(f"counts of {clipped(', '.join(extra)) or 'nothing'}")
        made: Tally = decoder(Tally)(extra[name])
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"checkpoint {arguments.checkpoint}",
            seen=str(error),
            allowed="the counts of checks by kvspec refine",
            remedy="Delete it, or name another with --checkpoint.",
        ) from None
    return made


def _refine(
    arguments: argparse.Namespace,
    report: Report,
    state: "Refinement",
    progress: "Progress",
    watchdog: "Watchdog",
) -> None:
    how = {"sample": arguments.unbatched, "seed": arguments.seed, "watchdog": watchdog}

    def saver(*checkers: "Checker") -> Callable[[], None]:
        def extra() -> dict[str, object]:
            for checker in checkers:
                checker.flush()
            return state.extra

        return lambda: progress.save(state.graph, extra)

    with report.progress("refine", total=None) as update:
        if arguments.rung == PACKED:
            _refine_packed(arguments, state, saver, update, how)
        else:
            _refine_cells(arguments, state, saver, update, how)


def _refine_cells(
    arguments: argparse.Namespace,
    state: "Refinement",
    saver: Callable[..., Callable[[], None]],
    update: Callable[[float, str], None],
    how: dict[str, Any],
) -> None:
    from conformance.refinement import run

    chosen, seed = graphs.chosen(arguments), arguments.seed
    checkers = [run.cells_checker(chosen, state, **how)]
    if _renamed(arguments):
        checkers.append(run.blind_cells_checker(chosen, state, seed=seed, watchdog=how["watchdog"]))
    checker, blind = (*checkers, None)[:2]
    assert checker is not None
    run.refine_cells(
        chosen,
        state,
        checker,
        illegal=arguments.alphabet == "illegal",
        blind=blind,
        seed=seed,
        update=update,
        level_done=saver(*checkers),
        most_states=arguments.states,
    )


def _refine_packed(
    arguments: argparse.Namespace,
    state: "Refinement",
    saver: Callable[..., Callable[[], None]],
    update: Callable[[float, str], None],
    how: dict[str, Any],
) -> None:
    from conformance.exploration.packed_search import CHUNK, Plan
    from conformance.exploration.packed_states import Allocator
    from conformance.refinement import run

    renamed = _renamed(arguments)
    plan = Plan(
        instance=Allocator(arguments.geometry, open_pages=renamed),
        illegal=arguments.alphabet == "illegal",
        most_states=arguments.states,
        chunk=run.RENAMED_CHUNK if renamed else CHUNK,
    )
    checker = run.allocator_checker(plan, state, **how)
    if renamed:
        seed = arguments.seed
        blind = run.blind_checker(plan, state, seed=seed, watchdog=how["watchdog"])
        done = saver(checker, blind)
        run.refine_renamed(plan, state, checker, blind, seed=seed, update=update, level_done=done)
    else:
        run.refine_allocator(plan, state, checker, update=update, level_done=saver(checker))
    if arguments.measure:
        state.looped_per_second = checker.measure_loop()


def _tell(
    arguments: argparse.Namespace,
    report: Report,
    state: "Refinement",
    *,
    seconds: float,
    earlier: int,
) -> None:
    graphs.tell(state.graph, report, seconds=seconds, earlier=earlier, left_out=arguments.leave_out)
    tally, graph = state.tally, state.graph
    report.count(
        checked=tally.checked,
        checked_unbatched=tally.checked_unbatched,
        refused_by_driver=tally.by_driver,
        mismatches=tally.mismatches,
        first_mismatch=", ".join(state.history) or None,
    )
    if _renamed(arguments):
        _tell_names(arguments, report, state)
    if state.looped_per_second and seconds:
        times = (graph.transitions - earlier) / seconds / state.looped_per_second
        report.count(
            unbatched_per_second=round(state.looped_per_second, 1),
            times_the_unbatched_loop=round(times, 1),
        )
    if state.broken is not None:
        report.fail(f"the specification itself: {state.broken}")
    if tally.mismatches:
        report.fail(f"{tally.mismatches} mismatches; first after {', '.join(state.history)}")
    if arguments.rung == PACKED:
        report.skip("contents, queue and outputs", why="refine --rung lifecycle and scheduling")
    if arguments.alphabet == "legal":
        report.skip("illegal actions", why="--alphabet legal leaves them out")
    if tally.by_driver:
        report.skip(
            f"the entry points on {tally.by_driver:,} actions that the driver refuses",
            why="they do not fit the arrays of a call; the reason of the driver is checked",
        )
    report.skip(
        "the reasons that generate gives for the round it stopped before",
        why="fuzz and replay check it",
    )


def _tell_names(arguments: argparse.Namespace, report: Report, state: "Refinement") -> None:
    from conformance.refinement import names

    report.count(
        renamings=names.renamings(arguments.geometry),
        names_checked=state.names.checked,
        names_mismatches=state.names.mismatches,
        first_names_mismatch=", ".join(state.names_history) or None,
    )
    if state.names.mismatches:
        first = ", ".join(state.names_history)
        report.fail(f"{state.names.mismatches} steps look at names; first after {first}")
    report.skip("other names than those drawn", why="that no step looks at names is checked")
    report.skip(
        "results, for whether a step looks at names", why="those of renamed states are checked"
    )


def _require_all_checked(
    arguments: argparse.Namespace, report: Report, state: "Refinement"
) -> None:
    """At the end of a run, require that every transition was checked."""
    from conformance.refinement import names

    graph, renamed = state.graph, _renamed(arguments)
    turns = names.renamings(arguments.geometry) if renamed else 1
    illegal = graph.illegal if arguments.alphabet == "illegal" else 0
    told = [("transitions were checked", state.tally, graph.transitions * turns + illegal)]
    if renamed:
        told.append(("steps were checked for names", state.names, graph.transitions + illegal))
    for what, tally, wanted in told:
        if graph.complete and state.broken is None and tally.checked != wanted:
            report.fail(f"{tally.checked} {what}, should be {wanted}")
