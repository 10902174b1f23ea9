"""The half of `kvspec kernel` that compiles for chips: options, the table, the baseline."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve

from conformance.cli.contract import Report
from conformance.cli.options import input_file, output_file
from conformance.cli.pages import put
from conformance.verdict import Scope, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.kernels.compile.grid import Cell
    from conformance.kernels.compile.outcome import Compiled

RESULTS: Final = ".kvspec/targets.jsonl"
PAGE_SIZES: Final = "16,128"
KV: Final = "bfloat16"


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
        "KV heads, head_dim), ... (default: the grid, see docs/kernel.md)",
    )
    parser.add_argument("--page-sizes", metavar="N,N", help=f"with --shapes (default {PAGE_SIZES})")
    parser.add_argument("--kv", metavar="DTYPE,DTYPE", help=f"with --shapes (default {KV})")
    parser.add_argument(
        "--append",
        action="store_true",
        help="with --target: the kernel is given new K and V, and writes them too",
    )
    parser.add_argument(
        "--baseline",
        type=input_file,
        metavar="FILE",
        help="the --json of an earlier run: a cell lost, more VMEM or more cycles is a failure",
    )
    parser.add_argument(
        "--reproduce",
        type=output_file,
        metavar="FILE",
        help="write one file that needs nothing of kvspec and shows the first failure or finding",
    )
    parser.add_argument(
        "--results",
        type=output_file,
        metavar="FILE",
        help=f"cells are kept here, and not compiled again (default {RESULTS})",
    )


def check(arguments: argparse.Namespace) -> None:
    """Raises InvalidInput for options that do not apply to what is asked for."""
    from spec.vocabulary import InvalidInput

    compiling = ("shapes", "baseline", "results")
    told = {"--target": compiling, "--shapes": ("page_sizes", "kv")}
    for needed, names in told.items():
        for name in names:
            given = getattr(arguments, name) is not None
            if given and getattr(arguments, needed.strip("-")) is None:
                option = "--" + name.replace("_", "-")
                raise InvalidInput(
                    option, seen="it alone", allowed=f"with {needed}", remedy=f"Give {needed} too."
                )
    if arguments.append and not arguments.target:
        raise InvalidInput(
            "--append",
            seen="it alone",
            allowed="with --target",
            remedy="Leave it out: without --target both are tried.",
        )
    if arguments.mutants and (arguments.target or arguments.reproduce):
        raise InvalidInput(
            "--mutants",
            seen="it and others",
            allowed="neither --target nor --reproduce beside it",
            remedy="Leave one out.",
        )


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Compile every cell that is asked for, and print what the compiler says."""
    from conformance.kernels import kernel_under_test
    from conformance.kernels.compile import baseline, cache, compiler, table
    from spec.vocabulary import InvalidInput

    report.skip("whether its answers are right", why="leave --target out")
    cells = chosen(arguments)
    earlier = baseline.load(Path(arguments.baseline)) if arguments.baseline else None
    if arguments.append and kernel_under_test.appending(arguments.kernel) is None:
        raise InvalidInput(
            "--append",
            seen=arguments.kernel,
            allowed=f"a kernel that takes {' and '.join(kernel_under_test.NEW_CELLS)}",
            remedy="Leave it out.",
        )
    lacking = compiler.missing()
    if lacking:
        report.skip("every cell", why=lacking)
        report.count(targets=[])
        return Verdict.UNDECIDED
    records: list[Compiled] = []
    path = Path(arguments.results or RESULTS)
    _say_notes(path, arguments.kernel, report)
    try:
        with report.progress("compile", total=len(cells)) as update:
            records.extend(cache.compile_all(cells, arguments.kernel, path=path, update=update))
    finally:
        records.sort(key=lambda record: cells.index(record.cell))
        report.count(targets=table.targets(records), cells=table.counts(records))
        _say(report, records)
    report.scope = Scope.COMPLETE
    unsaid = []
    if earlier is not None:
        now = table.targets(records)
        unsaid = baseline.not_compared(earlier, now)
        for text in unsaid:
            report.skip(text, why="there is nothing to compare")
        for text in baseline.regressions(earlier, now):
            report.fail(text)
    verdict = _judge(arguments, report, records)
    return Verdict.UNDECIDED if unsaid and verdict is Verdict.HOLDS else verdict


def chosen(arguments: argparse.Namespace) -> "Sequence[Cell]":
    """The cells: the grid on these chips, or all of these shapes. Raises InvalidInput."""
    return [evolve(cell, append=arguments.append) for cell in _without_append(arguments)]


def _say_notes(path: Path, kernel: str, report: Report) -> None:
    """What of the file of results is not used. Raises InvalidInput if it is another file."""
    from conformance.kernels.compile import cache

    results = cache.results_of(path)
    cache.load(results, kernel)
    for what, why in results.notes():
        report.skip(what, why=why)


def _without_append(arguments: argparse.Namespace) -> "Sequence[Cell]":
    from conformance.kernels.compile import grid
    from spec.vocabulary import InvalidInput

    chips = arguments.target.split(",")
    for chip in chips:
        if chip not in grid.CHIPS:
            raise InvalidInput(
                "--target", seen=chip, allowed=", ".join(grid.CHIPS), remedy="Name some of them."
            )
    if not arguments.shapes:
        return [cell for cell in (*grid.grid(), *grid.grid_on_v4()) if cell.chip in chips]
    sizes = (arguments.page_sizes or PAGE_SIZES).split(",")
    if not all(size.isascii() and size.isdigit() for size in sizes):
        raise InvalidInput(
            "--page-sizes", seen=sizes, allowed="integers", remedy="Separate them with commas."
        )
    shapes = [grid.heads(name) for name in arguments.shapes.split(",")]
    return grid.cells(
        shapes,
        chips=chips,
        page_sizes=[int(size) for size in sizes],
        kv=(arguments.kv or KV).split(","),
    )


def _say(report: Report, records: "Sequence[Compiled]") -> None:
    from conformance.kernels.compile import table

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
    from conformance.kernels.compile import reproduce

    lost = [record for record in records if record.verdict in {"fails", "refused"}]
    for record in lost:
        report.fail(f"{record.cell}: {record.verdict}: {record.reason}")
    if lost and arguments.reproduce:
        first = lost[0]
        path = Path(arguments.reproduce)
        unwritten = put(
            arguments.reproduce,
            reproduce.source(first.cell, arguments.kernel, given=first.given or None),
        )
        if unwritten is not None:
            raise unwritten
        report.say(f"  {path} shows the first failure, without kvspec")
    if report.failures:
        return Verdict.FAILS
    open_ends = [record for record in records if record.verdict == "undecided"]
    for record in open_ends:
        report.skip(str(record.cell), why=record.reason)
    return Verdict.UNDECIDED if open_ends else Verdict.HOLDS
