"""`kvspec compare`: the TPU kernels of ours, jax and tpu-inference under the same compilers."""

import argparse
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report
from conformance.cli.kernel import RESULTS
from conformance.cli.options import output_file
from conformance.cli.pages import put
from conformance.verdict import Scope, Verdict

if TYPE_CHECKING:
    from conformance.kernels.compile.grid import Cell
    from conformance.kernels.compile.outcome import Compiled

NAME: Final = "compare"
HELP: Final = "compiles three TPU kernels of paged attention for every chip, and compares them"
EXAMPLES: Final = (
    "kvspec compare --json c.json              # resumes an interrupted run",
    "kvspec compare --kept                     # kept results only; compiles nothing",
    "kvspec compare --write docs/compare.md",
)
SECONDS: Final = 7200.0
"""Time limit for one grid point: the compiler takes many minutes for some kernels."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The results file and the page to write."""
    parser.add_argument(
        "--results",
        type=output_file,
        metavar="FILE",
        default=RESULTS,
        help=f"the file of compiled grid points, which are not compiled again (default {RESULTS})",
    )
    parser.add_argument(
        "--kept", action="store_true", help="compile nothing: compare the kept grid points"
    )
    parser.add_argument(
        "--write",
        type=output_file,
        metavar="FILE",
        help="write the table as a page of Markdown",
    )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Compile the missing grid points of the table, and compare our kernel with the targets."""
    from conformance.kernels import comparison_page
    from conformance.kernels.comparison_row import KERNELS
    from conformance.kernels.compile import table

    report.skip("whether their answers are right", why="kvspec kernel checks each")
    report.skip("bandwidth, latency, overlap", why="there is no TPU here: shares are ceilings")
    records: dict[str, dict[Cell, Compiled]] = {kernel: {} for kernel in KERNELS}
    path, unwritten = Path(arguments.results), None
    try:
        for kernel in KERNELS:
            _fill(records[kernel], kernel, path, report, compiling=not arguments.kept)
    finally:
        every = [record for held in records.values() for record in held.values()]
        lines = comparison_page.table(records)[1:]
        keys = ("what", *KERNELS, "target", "state")
        report.count(
            targets=table.targets(every),
            table=[dict(zip(keys, line, strict=True)) for line in lines],
        )
        report.say(comparison_page.text(records))
        if arguments.write:
            today = datetime.now(UTC).date().isoformat()
            unwritten = put(arguments.write, comparison_page.page(records, date=today))
    open_ends = _judge(records, report)
    if unwritten is not None:
        raise unwritten
    report.scope = Scope.SAMPLED if open_ends else Scope.COMPLETE
    if report.failures:
        return Verdict.FAILS
    return Verdict.UNDECIDED if open_ends else Verdict.HOLDS


def _fill(
    held: "dict[Cell, Compiled]", kernel: str, path: Path, report: Report, *, compiling: bool
) -> None:
    """Compile what is missing for this kernel and add each record as it arrives."""
    from conformance.kernels import comparison
    from conformance.kernels.compile import cache, launch

    cells, plain = comparison.cells(), comparison.plain()
    results = cache.results_of(path)
    known = cache.load(results, kernel, plain=plain)
    for what, why in results.notes():
        report.skip(what, why=why)
    held.update({cell: known[cell] for cell in cells if cell in known})
    lacking = launch.missing() or _absent(kernel)
    if lacking:
        report.skip(f"{kernel}: {len(cells) - len(held)} grid points", why=lacking)
    elif compiling:
        with report.progress(kernel, total=len(cells)) as update:
            for record in cache.compile_all(
                cells, kernel, path=path, update=update, seconds=SECONDS, plain=plain
            ):
                held[record.cell] = record


def _absent(kernel: str) -> str | None:
    """What must be installed for this kernel; None if nothing is missing."""
    from conformance.kernels.kernel_under_test import INSTALLED

    module = INSTALLED.get(kernel)
    if module is None or find_spec(module) is not None:
        return None
    return f"{module} is not installed. Run make compare, which has an environment with it."


def _judge(records: "dict[str, dict[Cell, Compiled]]", report: Report) -> bool:
    """Record each missed target; return whether anything is undecided."""
    from conformance.kernels import comparison
    from conformance.kernels.comparison_row import KERNELS

    open_ends = False
    for row in comparison.rows():
        judged = row.judged(records)
        for text in judged.missed:
            report.fail(f"{row.what}: {text}")
        open_ends |= bool(judged.open)
    for kernel, title in KERNELS.items():
        absent = [cell for cell in comparison.cells() if cell not in records[kernel]]
        if absent:
            open_ends = True
            report.skip(f"{title}, {len(absent)} grid points", why="not measured")
        for cell, record in records[kernel].items():
            if record.verdict == "undecided":
                open_ends = True
                report.skip(f"{title}, {cell}", why=record.reason)
    return open_ends
