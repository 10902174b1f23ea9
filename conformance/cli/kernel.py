"""`kvspec kernel`: an attention kernel against the oracle, on a machine without a TPU."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve

from conformance.cli.contract import Report
from conformance.cli.options import File, input_file, integer, output_file
from conformance.cli.pages import put
from conformance.verdict import Scope, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from conformance.kernels.compile.grid import Cell
    from conformance.kernels.compile.outcome import Compiled
    from conformance.kernels.jobs import MutantScore
    from conformance.kernels.kernel_under_test import Subject
    from conformance.kernels.processes import Tried
    from conformance.kernels.trials import Job

NAME: Final = "kernel"
HELP: Final = "checks a kernel of ragged paged attention against the oracle; no TPU is needed"
EXAMPLES: Final = (
    "kvspec kernel tpu                         # our kernel for TPUs, interpreted",
    "kvspec kernel mine.kernels:attention --json k.json",
    "kvspec kernel tpu --mutants               # is each planted bug caught?",
    "kvspec kernel tpu --target v5e,v6e --shapes llama-3-8b --json t.json",
    "kvspec kernel tpu --target v5e,v6e --shapes llama-3-8b --baseline t.json",
)
CASES: Final = 3
RESULTS: Final = ".kvspec/targets.jsonl"
PAGE_SIZES: Final = "16,128"
KV: Final = "bfloat16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The kernel, and how many batches to try."""
    parser.add_argument(
        "kernel",
        metavar="KERNEL",
        help="MODULE:FUNCTION with the interface of ragged paged attention, or: tpu, reference "
        "(ours), jax (the one that comes with it), tpu-inference (see docs/kernel.md)",
    )
    parser.add_argument(
        "--cases",
        type=integer(least=1),
        default=CASES,
        help="batches of each shape, beside those that reach what the kernel can do; other block "
        f"sizes and layouts take some more (default {CASES})",
    )
    parser.add_argument(
        "--stall",
        type=integer(least=1),
        default=120,
        metavar="SECONDS",
        help="time limit of a batch, after which the kernel counts as hung (default 120)",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="try every shape, even after the first finding",
    )
    parser.add_argument(
        "--mutants",
        action="store_true",
        help="plant bugs in our kernel, and report which are caught",
    )
    _add_target_arguments(parser)


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Try every shape, each in a process of its own."""
    from conformance.kernels.kernel_under_test import find

    report.scope = Scope.SAMPLED
    subject = find(arguments.kernel)
    _check(arguments)
    if arguments.target:
        return _compile(arguments, report)
    if arguments.mutants:
        return _mutants(arguments, report)
    return _cases(arguments, report, subject)


def _cases(arguments: argparse.Namespace, report: Report, subject: "Subject") -> Verdict:
    from conformance.kernels import jobs
    from conformance.kernels.kernel_under_test import APPENDING

    planned = jobs.plan(subject, cases=arguments.cases, seed=arguments.seed)
    for name, options in planned.left_out.items():
        report.skip(name, why=f"the function does not take {options}")
    if arguments.kernel not in APPENDING:
        report.skip("rows of q that belong to no sequence", why="they may hold anything")
    tried = _new(planned.jobs)
    try:
        _make(arguments, report, tried, enough=_enough(arguments))
    finally:
        _tell(report, tried)
    report.count(races=_races(report, tried))
    if arguments.reproduce:
        _reproduce(arguments.reproduce, tried, report)
    if report.failures:
        return Verdict.FAILS
    whole = bool(tried) and tried[0].ended == "passed" and tried[0].cases > 0
    left = [one for one in tried if one.covered and one.covered["missed"]]
    reached = not any(one.covered and one.covered["decides"] for one in left)
    reached = reached and not jobs.lines_of(tried)["missed"]
    starved = any(one.starved or one.ended == "broken" for one in tried)
    return Verdict.HOLDS if whole and reached and not starved else Verdict.UNDECIDED


def _enough(arguments: argparse.Namespace) -> "Callable[[Tried], bool]":
    """Whether to stop after a job."""
    return lambda one: one.wrong and not arguments.keep_going


def _tell(report: Report, tried: "Sequence[Tried]") -> None:
    from conformance.kernels import jobs
    from conformance.kernels.coverage import table

    report.count(**jobs.totals(tried))
    if any(one.cases for one in tried):
        report.say(table.text(tried))
        pairs = jobs.pairs_of(tried)
        report.say(f"  any two features of a shape: {pairs['tried']} of {pairs['of']} pairs tried")
    for line in jobs.lines_of(tried)["missed"]:
        report.skip(f"the branch at {line}", why="no shape leads there when the kernel is traced")
    left = [one for one in tried if not one.ended]
    if left:
        report.skip(f"{len(left)} of {len(tried)} jobs", why="it stopped; see --keep-going")
    for one in tried:
        _tell_job(one, report)


def _tell_job(one: "Tried", report: Report) -> None:
    if one.unfollowed:
        report.skip(f"{_where(one)}: its branches and loops", why=one.unfollowed)
    if one.covered and one.covered["decides"]:
        for outcome in one.covered["missed"]:
            report.skip(f"{_where(one)}: {outcome}", why="no batch reached it")
    if one.undecided:
        report.skip(f"{one.job.sizes}, in part or whole", why=f"{one.ended}: {one.text}")
    elif one.wrong:
        report.fail(f"{_where(one)}: {', '.join(one.what) or one.ended} {one.text}".rstrip())
        report.say(f"    {one.batch}")
    if one.loose:
        report.say(
            f"  loose: {_where(one)}: {one.loose} of {one.cases} batches, at most "
            f"{one.looseness:.3g} times what rounding would likely give"
        )
        report.say(f"    {one.loosest}")


def _reproduce(target: File, tried: "Sequence[Tried]", report: Report) -> None:
    from conformance.kernels import standalone
    from conformance.kernels.batches import Batch

    plain = [one for one in tried if not one.job.append and one.batch]
    shown = [one for one in plain if set(one.what) & standalone.SHOWN]
    if not shown:
        kinds = ", ".join(sorted(standalone.SHOWN))
        report.say(f"  no finding of {kinds}, without new cells: {target} is not written")
        return
    one = shown[0]
    assert one.batch is not None
    text = standalone.source(one.job, Batch.from_json(one.batch), ", ".join(one.what))
    unwritten = put(target, text)
    if unwritten is not None:
        raise unwritten
    report.say(f"  {target} shows the first finding, without kvspec")


def _races(report: Report, tried: "Sequence[Tried]") -> int | None:
    """The number of races; None, and a `not checked` entry, if races could not be detected."""
    from conformance.kernels import processes

    eager = [one for one in tried if one.job.mode == "eager" and one.cases]
    if not any(one.pallas for one in eager):
        report.skip("races, reads outside", why="no part of it ran in the interpreter of the TPU")
        return None
    if not processes.sees_races():
        report.skip("races", why="this jax does not detect the race of the control")
        return None
    report.skip("races between devices, or with other kernels", why="it is interpreted alone")
    return sum("race" in one.what for one in eager)


def _mutants(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Each bug under the kernel checks and under conventional tests; then the correct kernel."""
    from conformance.kernels import jobs
    from spec.vocabulary import InvalidInput

    if arguments.kernel != "tpu":
        raise InvalidInput(
            "--mutants",
            seen=arguments.kernel,
            allowed="tpu",
            remedy="These bugs can be planted in our kernel only.",
        )
    seeded = jobs.of_mutants(cases=arguments.cases, seed=arguments.seed)
    clean = dict.fromkeys(evolve(job, mutant=None) for job in seeded)
    kit, controls = _new(seeded), _new([*clean])
    usual = _new([evolve(job, plain=True) for job in seeded])
    try:
        _make(arguments, report, [*kit, *controls, *usual])
    finally:
        rows = [jobs.score(*pair) for pair in zip(kit, usual, strict=True)]
        report.count(mutants=rows, caught=sum(row["caught"] for row in rows))
    for row in rows:
        report.say(_line(row))
        if not row["caught"]:
            report.fail(f"{row['mutant']}: not caught in {row['cases']} cases")
    for one in controls:
        if one.ended != "passed":
            report.fail(f"without a bug: {_where(one)}: {one.ended} {one.text}")
    return Verdict.FAILS if report.failures else Verdict.HOLDS


def _line(row: "MutantScore") -> str:
    usual = "caught" if row["caught_by_usual_tests"] else "not caught"
    by = ", ".join(row["by"])
    name = f"{row['mutant']} ({row['what']})"
    return f"  {name:<72} {by:<16} after {row['cases']:>3}; usual tests: {usual}"


def _new(jobs: "Sequence[Job]") -> "list[Tried]":
    from conformance.kernels.processes import Tried

    return [Tried(job) for job in jobs]


def _make(
    arguments: argparse.Namespace,
    report: Report,
    tried: "Sequence[Tried]",
    *,
    enough: "Callable[[Tried], bool]" = lambda _tried: False,
) -> None:
    from conformance.kernels import processes

    total = sum(one.job.cases for one in tried)
    with report.progress("kernel", total=total) as update:
        processes.make_all(tried, update=update, stall=arguments.stall, enough=enough)


def _where(one: "Tried") -> str:
    job = one.job
    twin = f", twin {job.twin}" if job.twin else ""
    append = ", appending" if job.append else ""
    return f"{job.sizes} (block sizes {job.variant}, copies {job.mode}{twin}{append})"


def _add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Chips and shapes, an earlier run to compare with, and a file that reproduces a failure."""
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
        help="with --target: the kernel receives new K and V, and writes them",
    )
    parser.add_argument(
        "--baseline",
        type=input_file,
        metavar="FILE",
        help="the --json of an earlier run: a lost grid point, more VMEM or more cycles fails",
    )
    parser.add_argument(
        "--reproduce",
        type=output_file,
        metavar="FILE",
        help="write a file that reproduces the first failure or finding without kvspec",
    )
    parser.add_argument(
        "--results",
        type=output_file,
        metavar="FILE",
        help=f"the file of compiled grid points, which are not compiled again (default {RESULTS})",
    )


def _check(arguments: argparse.Namespace) -> None:
    """Raises InvalidInput for options that do not apply to this run."""
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


def _compile(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Compile every requested grid point, and print what the compiler reports."""
    from conformance.kernels import kernel_under_test
    from conformance.kernels.compile import baseline, cache, launch, table
    from spec.vocabulary import InvalidInput

    report.skip("whether its answers are right", why="leave --target out")
    cells = _chosen(arguments)
    earlier = baseline.load(Path(arguments.baseline)) if arguments.baseline else None
    if arguments.append and kernel_under_test.find_appending(arguments.kernel) is None:
        raise InvalidInput(
            "--append",
            seen=arguments.kernel,
            allowed=f"a kernel that takes {' and '.join(kernel_under_test.NEW_CELLS)}",
            remedy="Leave it out.",
        )
    lacking = launch.missing()
    if lacking:
        report.skip("every grid point", why=lacking)
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
        _say_cells(report, records)
    report.scope = Scope.COMPLETE
    unsaid = []
    if earlier is not None:
        now = table.targets(records)
        unsaid = baseline.not_compared(earlier, now)
        for text in unsaid:
            report.skip(text, why="there is nothing to compare")
        for text in baseline.regressions(earlier, now):
            report.fail(text)
    verdict = _judge_cells(arguments, report, records)
    return Verdict.UNDECIDED if unsaid and verdict is Verdict.HOLDS else verdict


def _chosen(arguments: argparse.Namespace) -> "Sequence[Cell]":
    """The grid points: the grid on these chips, or all of these shapes. Raises InvalidInput."""
    return [evolve(cell, append=arguments.append) for cell in _without_append(arguments)]


def _say_notes(path: Path, kernel: str, report: Report) -> None:
    """Report unused lines of the results file. Raises InvalidInput for another kind of file."""
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


def _say_cells(report: Report, records: "Sequence[Compiled]") -> None:
    from conformance.kernels.compile import table

    if not records:
        return
    report.say(table.overview(records))
    report.say("")
    report.say(table.details(records))
    report.say(f"  {table.summary(records)}")
    for cell, why in table.unknown(records).items():
        report.skip(cell, why=why)


def _judge_cells(
    arguments: argparse.Namespace, report: Report, records: "Sequence[Compiled]"
) -> Verdict:
    """A grid point that does not compile, or that the kernel refuses, fails: the table has both."""
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
