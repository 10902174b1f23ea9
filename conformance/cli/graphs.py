"""Options, checkpoints and counts that `explore` and `refine` share."""

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report
from conformance.cli.options import add_geometry, integer, output_file
from conformance.cli.output import complain
from conformance.exploration.instances import PACKED, RUNGS, machine
from conformance.files.geometries import geometry_to_data
from conformance.runtime.sources import digest
from conformance.verdict import Scope, Verdict
from spec.machines.actions import Round
from spec.vocabulary import CleanupMode, InvalidInput, Reason
from spec.vocabulary.errors import Family

if TYPE_CHECKING:
    from conformance.exploration.graph import Graph
    from conformance.exploration.instances import Instance

FINISHING: Final = tuple(name for name in RUNGS if Round in machine(name).calls)
"""The rungs in which sequences finish."""
GEOMETRY: Final = "pages=4,slots=3,page_size=2,pages_per_seq=2"
CHECKPOINT_SECONDS: Final = 20.0
"""How much work an interrupt may lose, beyond the current level of the search."""
ROOM: Final = "only OUT_OF_PAGES is verified against every choice; other guards are trusted"


def add_arguments(
    parser: argparse.ArgumentParser, *, rungs: Sequence[str] = RUNGS, alphabet: str = "legal"
) -> None:
    """The options that select a graph. rungs: those to choose from. alphabet: the default."""
    finishing = [name for name in FINISHING if name in rungs]
    add_geometry(parser, default=GEOMETRY)
    parser.add_argument(
        "--rung", choices=rungs, default=PACKED, help="what is observed (docs/explore.md)"
    )
    parser.add_argument(
        "--alphabet",
        choices=("legal", "illegal"),
        default=alphabet,
        help="illegal: also what a caller must not ask; each must be refused and change nothing "
        f"(default {alphabet}; explore asks it of every rung but sharing in any case)",
    )
    parser.add_argument(
        "--cleanup",
        choices=[mode.value for mode in CleanupMode],
        help=f"{' and '.join(finishing)}: when finished sequences are freed (default incremental)",
    )
    parser.add_argument(
        "--pages",
        choices=("lowest", "open"),
        default="lowest",
        help="open: states are taken up to renaming of pages; without a queue, of slots and tokens "
        "too",
    )
    parser.add_argument(
        "--stop-len",
        type=int,
        choices=(1, 2),
        default=1,
        help="tokens of a stop sequence, 1 or 2 (default 1)",
    )
    parser.add_argument(
        "--leave-out",
        nargs="+",
        default=[],
        metavar="MOVE",
        help="kinds of moves that are not taken, in any rung but sharing, as: enqueue",
    )
    parser.add_argument(
        "--states",
        type=integer(least=0),
        default=0,
        metavar="N",
        help="stop after the level that reaches this many states; the verdict is then undecided "
        "(default 0: all)",
    )
    parser.add_argument(
        "--checkpoint",
        type=output_file,
        metavar="FILE",
        help="resume from this file if it exists, and keep it current; removed at the end",
    )


class Progress:
    """The checkpoint of a run: loaded at the start, saved from time to time, removed at the end."""

    def __init__(self, arguments: argparse.Namespace, about: dict[str, object]) -> None:
        given = arguments.checkpoint  # of a link, the file is removed at the end, and not the link
        self._path = None if given is None else Path(os.path.realpath(given))
        self._about = about | {"source": digest()}
        self._saved = time.monotonic()

    def load(self) -> tuple["Graph", dict[str, object]] | None:
        """The state of an interrupted run, if there is one."""
        from conformance.exploration import graph

        return None if self._path is None else graph.load(self._path, self._about)

    def save(
        self,
        held: "Graph",
        extra: Callable[[], dict[str, object]] = dict,
        *,
        every: float = CHECKPOINT_SECONDS,
    ) -> None:
        """Save if the last time is long enough ago, in seconds. extra: called only then."""
        from conformance.exploration import graph

        if self._path is not None and time.monotonic() - self._saved >= every:
            self._saved = time.monotonic()
            try:
                graph.save(held, self._path, self._about, extra=extra())
            except OSError as error:  # the work is worth more than the file
                why = error.strerror or type(error).__name__
                complain("", f"--checkpoint {self._path}: not kept: {why}; the last one stays")

    def end(self, held: "Graph", extra: Callable[[], dict[str, object]] = dict) -> None:
        """Remove the checkpoint of a complete graph; keep that of a run which its bound ended."""
        if not held.complete:
            self.save(held, extra, every=0.0)
        elif self._path is not None:
            self._path.unlink(missing_ok=True)


def about(arguments: argparse.Namespace) -> dict[str, object]:
    """The parameters that a checkpoint must agree with, as plain data."""
    return {
        "rung": arguments.rung,
        "geometry": geometry_to_data(arguments.geometry),
        "alphabet": arguments.alphabet,
        "cleanup": cleanup(arguments).value,
        "pages": arguments.pages,
        "stop_len": arguments.stop_len,
        "left_out": arguments.leave_out,
    }


def chosen(arguments: argparse.Namespace) -> "Instance":
    """The instance of a rung that the specification itself explores. Raises InvalidInput."""
    from conformance.exploration.instances import instance

    return instance(
        arguments.rung,
        arguments.geometry,
        cleanup(arguments),
        stop_len=arguments.stop_len,
        left_out=tuple(arguments.leave_out),
        open_pages=arguments.pages == "open",
    )


def cleanup(arguments: argparse.Namespace) -> CleanupMode:
    """When finished sequences are freed. Raises InvalidInput for a rung in which none finishes."""
    if arguments.cleanup is None:
        return CleanupMode.INCREMENTAL
    if arguments.rung not in FINISHING:
        raise InvalidInput(
            f"--cleanup {arguments.cleanup}",
            seen=f"--rung {arguments.rung}",
            allowed=f"--rung {' or '.join(FINISHING)}: in the others no sequence finishes",
            remedy="Leave one of them out.",
        )
    return CleanupMode(arguments.cleanup)


def check_packed(arguments: argparse.Namespace, *, illegal_open: bool) -> None:
    """Raise InvalidInput for what the packed states of sharing do not have.

    illegal_open: whether states up to renaming may be asked for the illegal alphabet.
    """
    if arguments.rung != PACKED:
        return
    if arguments.pages == "open" and not (illegal_open or arguments.alphabet == "legal"):
        raise InvalidInput(
            "--pages open",
            seen=f"--rung {arguments.rung} --alphabet {arguments.alphabet}",
            allowed="explore --rung sharing --alphabet legal, or another rung",
            remedy="Leave one of them out.",
        )
    if arguments.stop_len > 1 or arguments.leave_out:
        raise InvalidInput(
            "--stop-len" if arguments.stop_len > 1 else "--leave-out",
            seen=f"--rung {arguments.rung}",
            allowed="another rung: this one has a fixed list of moves, and no stop sequences",
            remedy="Leave one of them out.",
        )


def tell(
    graph: "Graph",
    report: Report,
    *,
    seconds: float,
    earlier: int = 0,
    left_out: Sequence[str] = (),
) -> None:
    """Report the counts of a graph.

    earlier: transitions of an earlier run, left out of the rate. left_out: kinds of moves.
    """
    if left_out:
        report.skip(f"the moves {', '.join(left_out)}", why="--leave-out")
    actions: dict[str, dict[str, int]] = {}
    for outcome, times in sorted(graph.outcomes.items()):
        kind, _, name = outcome.partition(": ")
        actions.setdefault(kind, {})[name] = times
    undone = never_done(actions)
    if undone:
        report.skip(f"{', '.join(undone)}: done in no state", why="the geometry has no room for it")
    report.count(
        states=graph.states,
        transitions=graph.transitions,
        illegal=graph.illegal,
        depth=graph.depth,
        per_second=round((graph.transitions - earlier) / seconds, 1) if seconds else 0.0,
        actions=actions,
    )
    for kind, outcomes in actions.items():
        told = ", ".join(f"{name} {times:,}" for name, times in outcomes.items())
        report.say(f"  {kind:>14}  {told}")


def never_done(actions: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The kinds of moves that are refused for lack of room in some state, and done in none."""
    return [
        kind
        for kind, outcomes in actions.items()
        if "done" not in outcomes
        and any(
            all(Reason[name].family is Family.CAPACITY for name in reasons.split(" or "))
            for reasons in outcomes
        )
    ]


def verdict(graph: "Graph", report: Report, scope: Scope = Scope.COMPLETE) -> Verdict:
    """Holds only if nothing failed and no state is left unexpanded.

    scope: that of a whole graph.
    """
    if graph.complete:
        report.scope = scope
    if report.failures:
        return Verdict.FAILS
    if not graph.complete:
        report.say(f"  undecided: {graph.states} states were visited and more are left")
        return Verdict.UNDECIDED
    return Verdict.HOLDS
