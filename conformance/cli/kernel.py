"""`kvspec kernel`: any ragged paged attention against the oracle, on a machine without a TPU."""

import argparse
from typing import TYPE_CHECKING, Final

from conformance.cli import kernel_targets
from conformance.cli.contract import Report, Scope, Verdict
from conformance.cli.options import File, integer
from conformance.cli.pages import put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.kernels.jobs import MutantScore
    from conformance.kernels.kernel_under_test import Subject
    from conformance.kernels.processes import Tried
    from conformance.kernels.trials import Job

NAME: Final = "kernel"
HELP: Final = "holds a kernel of ragged paged attention to the oracle; no TPU is needed"
EXAMPLES: Final = (
    "kvspec kernel tpu                         # our kernel for TPUs, interpreted",
    "kvspec kernel mine.kernels:attention --json k.json",
    "kvspec kernel tpu --mutants               # is each planted bug caught?",
    "kvspec kernel tpu --target v5e,v6e --shapes llama-3-8b --json t.json",
    "kvspec kernel tpu --target v5e,v6e --shapes llama-3-8b --baseline t.json",
)
CASES: Final = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which kernel, and how much is tried."""
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
        help=f"batches of each shape; other block sizes and layouts take some more "
        f"(default {CASES})",
    )
    parser.add_argument(
        "--stall",
        type=integer(least=1),
        default=120,
        metavar="SECONDS",
        help="without a batch for so long a kernel counts as hanging (default 120)",
    )
    parser.add_argument(
        "--mutants", action="store_true", help="plant bugs in our kernel, and say which are caught"
    )
    kernel_targets.add_arguments(parser)


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Try every shape in processes of their own."""
    from conformance.kernels.kernel_under_test import find

    report.scope = Scope.SAMPLED
    subject = find(arguments.kernel)
    kernel_targets.check(arguments)
    if arguments.target:
        return kernel_targets.run(arguments, report)
    if arguments.mutants:
        return _mutants(arguments, report)
    return _cases(arguments, report, subject)


def _cases(arguments: argparse.Namespace, report: Report, subject: "Subject") -> Verdict:
    from conformance.kernels import jobs as plan

    planned = plan.plan(subject, cases=arguments.cases, seed=arguments.seed)
    for name, options in planned.left_out.items():
        report.skip(name, why=f"the function does not take {options}")
    tried = _new(planned.jobs)
    try:
        _make(arguments, report, tried)
    finally:
        _tell(report, tried)
    report.count(races=_races(report, tried))
    if arguments.reproduce:
        _reproduce(arguments.reproduce, tried, report)
    if report.failures:
        return Verdict.FAILS
    whole = bool(tried) and tried[0].ended == "passed" and tried[0].cases > 0
    return Verdict.HOLDS if whole else Verdict.UNDECIDED


def _tell(report: Report, tried: "Sequence[Tried]") -> None:
    from conformance.kernels import jobs as plan

    report.count(**plan.totals(tried))
    for one in tried:
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
    """How many were found; None, and said to be so, if they could not be looked for."""
    from conformance.kernels import processes

    eager = [one for one in tried if one.job.mode == "eager" and one.cases]
    if not any(one.pallas for one in eager):
        report.skip("races, reads outside", why="nothing of it ran in the interpreter of the TPU")
        return None
    if not processes.sees_races():
        report.skip("races", why="this jax does not find the race of the control")
        return None
    report.skip("races between devices, or with other kernels", why="it is interpreted alone")
    return sum("race" in one.what for one in eager)


def _mutants(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Each bug under the bench, and under tests as they are usual; then the kernel without any."""
    from attrs import evolve

    from conformance.kernels import jobs as plan
    from spec.vocabulary import InvalidInput

    if arguments.kernel != "tpu":
        raise InvalidInput(
            "--mutants", seen=arguments.kernel, allowed="tpu", remedy="They are bugs of our own."
        )
    jobs = plan.of_mutants(cases=arguments.cases, seed=arguments.seed)
    clean = dict.fromkeys(evolve(job, mutant=None) for job in jobs)
    kit, controls = _new(jobs), _new([*clean])
    usual = _new([evolve(job, plain=True) for job in jobs])
    try:
        _make(arguments, report, [*kit, *controls, *usual])
    finally:
        rows = [plan.score(*pair) for pair in zip(kit, usual, strict=True)]
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


def _make(arguments: argparse.Namespace, report: Report, tried: "Sequence[Tried]") -> None:
    from conformance.kernels import processes

    total = sum(one.job.cases for one in tried)
    with report.progress("kernel", total=total) as update:
        processes.make_all(tried, update=update, stall=arguments.stall)


def _where(one: "Tried") -> str:
    job = one.job
    twin = f", twin {job.twin}" if job.twin else ""
    append = ", appending" if job.append else ""
    return f"{job.sizes} (block sizes {job.variant}, copies {job.mode}{twin}{append})"
