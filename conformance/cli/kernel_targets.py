"""The half of `kvspec kernel` that compiles for chips: options, the table, the baseline."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report, Scope, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.kernel.ahead.compiled import Compiled
    from conformance.kernel.ahead.grid import Cell

RESULTS: Final = ".kvspec/targets.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Chips and shapes, an earlier run to compare with, and a file that shows a failure."""
    parser.add_argument(
        "--target",
        metavar="CHIP,CHIP",
        help="compile ahead of time for these chips: v4, v5e, v5p, v6e, 7x; needs kvspec[tpu]",
    )
    parser.add_argument(
        "--shapes",
        metavar="NAME,NAME",
        help="with --target: llama-3-8b, llama-3-70b/8 (one of 8 devices), 32x8x128 (query heads, "
        "KV heads, head_dim), ... (default: the grid of seven shapes, see docs/tpu.md)",
    )
    parser.add_argument(
        "--page-sizes", metavar="N,N", default="16,128", help="with --shapes (default 16,128)"
    )
    parser.add_argument(
        "--kv", metavar="DTYPE,DTYPE", default="bfloat16", help="with --shapes (default bfloat16)"
    )
    parser.add_argument(
        "--baseline",
        metavar="FILE",
        help="the --json of an earlier run: a cell lost, more VMEM or more cycles is a failure",
    )
    parser.add_argument(
        "--reproduce",
        metavar="FILE",
        help="write one file that needs nothing of kvspec and shows the first failure or finding",
    )
    parser.add_argument(
        "--results",
        metavar="FILE",
        default=RESULTS,
        help=f"cells are kept here, and not compiled again (default {RESULTS})",
    )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Compile every cell that is asked for, and print what the compiler says."""
    from conformance.kernel.ahead import baseline, compiler, kept, table

    report.skip("whether its answers are right", why="leave --target out")
    cells = chosen(arguments)
    earlier = baseline.load(Path(arguments.baseline)) if arguments.baseline else None
    lacking = compiler.missing()
    if lacking:
        report.skip("every cell", why=lacking)
        report.count(targets=[])
        return Verdict.UNDECIDED
    records: list[Compiled] = []
    try:
        with report.progress("compile", total=len(cells)) as update:
            path = Path(arguments.results)
            records.extend(kept.compile_all(cells, arguments.kernel, path=path, update=update))
    finally:
        records.sort(key=lambda record: cells.index(record.cell))
        report.count(targets=table.targets(records), cells=table.counts(records))
        _say(report, records)
    report.scope = Scope.COMPLETE
    if earlier is not None:
        now = table.targets(records)
        for text in baseline.not_compared(earlier, now):
            report.skip(text, why="there is nothing to compare")
        for text in baseline.regressions(earlier, now):
            report.fail(text)
    return _judge(arguments, report, records)


def chosen(arguments: argparse.Namespace) -> "Sequence[Cell]":
    """The cells: the grid on these chips, or all of these shapes. Raises InvalidInput."""
    from conformance.kernel.ahead import grid
    from spec.vocabulary import InvalidInput

    chips = arguments.target.split(",")
    for chip in chips:
        if chip not in grid.CHIPS:
            raise InvalidInput(
                "--target", seen=chip, allowed=", ".join(grid.CHIPS), remedy="Name some of them."
            )
    if not arguments.shapes:
        return [cell for cell in (*grid.grid(), *grid.grid_on_v4()) if cell.chip in chips]
    sizes = arguments.page_sizes.split(",")
    if not all(size.isascii() and size.isdigit() for size in sizes):
        raise InvalidInput(
            "--page-sizes", seen=sizes, allowed="integers", remedy="Separate them with commas."
        )
    shapes = [grid.heads(name) for name in arguments.shapes.split(",")]
    return grid.cells(
        shapes,
        chips=chips,
        page_sizes=[int(size) for size in sizes],
        kv=arguments.kv.split(","),
    )


def _say(report: Report, records: "Sequence[Compiled]") -> None:
    from conformance.kernel.ahead import table

    if not records:
        return
    report.say(table.overview(records))
    report.say("")
    report.say(table.details(records))
    report.say(f"  {table.summary(records)}")
    for cell, why in table.unknown(records).items():
        report.skip(cell, why=why)


def _judge(arguments: argparse.Namespace, report: Report, records: "Sequence[Compiled]") -> Verdict:
    """A cell that does not compile fails, also by the kernel's own refusal: the table has both."""
    from conformance.kernel.ahead import reproduce

    lost = [record for record in records if record.verdict in {"fails", "refused"}]
    for record in lost:
        report.fail(f"{record.cell}: {record.verdict}: {record.reason}")
    if lost and arguments.reproduce:
        first = lost[0]
        path = Path(arguments.reproduce)
        reproduce.write(path, first.cell, arguments.kernel, given=first.given or None)
        report.say(f"  {path} shows the first failure, without kvspec")
    if report.failures:
        return Verdict.FAILS
    open_ends = [record for record in records if record.verdict == "undecided"]
    for record in open_ends:
        report.skip(str(record.cell), why=record.reason)
    return Verdict.UNDECIDED if open_ends else Verdict.HOLDS
