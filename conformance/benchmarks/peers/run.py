"""`make peers`: the reference attention and its peers, timed in one run.

An answer is checked against the oracle before it is timed, so that a fast wrong one does not count.
Calls are made in turns, medians of each; clocks of shared machines drift, so targets are reported
as met or missed, and only a wrong answer of ours makes the command fail.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Final

import jax
from attrs import asdict, evolve, frozen
from rich.console import Console
from rich.table import Table

from conformance.benchmarks.peers.candidates import CANDIDATES, OLD_BLOCKS, OURS, SCAN, Call
from conformance.benchmarks.peers.cases import ACCELERATOR, CPU, QUICK, Case, Size, cases
from conformance.benchmarks.peers.levanter import Missing
from conformance.files import atomic

HEADLINE: Final = 3.0
"""Times faster than Levanter with its old blocks. Source: docs/sources.md, "Block sizes"."""
DISTRIBUTIONS: Final = ("jax", "jaxlib", "numpy", "levanter", "haliax")


@frozen
class Row:
    """One candidate on one case. seconds: the median of `calls`; None where it was not timed."""

    case: str
    name: str
    seconds: float | None
    calls: int = 0
    problem: str = ""
    over_ours: float | None = None
    over_scan: float | None = None
    gigabytes: float | None = None

    @property
    def target(self) -> float | None:
        """The least ratio to our time that is the target; None without one."""
        return {OURS: None, SCAN: None, OLD_BLOCKS: HEADLINE}.get(self.name, 1.0)

    @property
    def verdict(self) -> str:
        """Met, missed, not measured or wrong; empty without a target."""
        if self.problem:
            return self.problem
        if self.target is None or self.over_ours is None:
            return ""
        return f"{'met' if self.over_ours >= self.target else 'MISSED'}: at least {self.target:g}"


def main(argv: list[str] | None = None) -> int:
    """Measure, print a table, and return 1 only if ours is wrong."""
    options = _options(argv)
    started = time.perf_counter()
    size = QUICK if options.quick else CPU if jax.default_backend() == "cpu" else ACCELERATOR
    rows = [row for case in cases(size) for row in measure(case)]
    show(rows, size)
    if options.json:
        text = to_json(rows, size, time.perf_counter() - started)
        atomic.write(options.json, text)
    return 1 if any(row.name == OURS and row.problem for row in rows) else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.benchmarks.peers.run",
        description="Time the reference attention beside its peers.",
        epilog="example: python -m conformance.benchmarks.peers.run --quick --json peers.json",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write one JSON object")
    parser.add_argument("--quick", action="store_true", help="a small size, as a smoke test")
    return parser.parse_args(argv)


def measure(
    case: Case, candidates: Mapping[str, Callable[[Case], Call]] = CANDIDATES
) -> tuple[Row, ...]:
    """A row for each candidate, including missing and wrong ones."""
    calls: dict[str, Call] = {}
    rows: dict[str, Row] = {}
    for name, make in candidates.items():
        problem = None
        try:
            call = make(case)
            answer = jax.block_until_ready(call())  # type: ignore[no-untyped-call]
            problem = None if name == SCAN else case.wrong(answer)
            problem = problem and f"WRONG: {problem}"
        except Missing as missing:
            problem = f"not measured: {missing}"
        rows[name] = Row(case.name, name, None, problem=problem or "")
        if problem is None:
            calls[name] = call
    taken = _take_turns(calls, case.size)
    for name, seconds in taken.items():
        rows[name] = evolve(rows[name], seconds=median(seconds), calls=len(seconds))
    return tuple(_compared(row, rows, case) for row in rows.values())


def _take_turns(calls: dict[str, Call], size: Size) -> dict[str, list[float]]:
    """Seconds of each call, made in turns until a candidate has used up its time.

    An untimed call of the same candidate precedes each: memory of a call is still being released
    when its answer is there, and the next call would wait for that.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(size.turns):
        for name, call in calls.items():
            if sum(taken[name]) <= size.seconds:
                jax.block_until_ready(call())  # type: ignore[no-untyped-call]
                start = time.perf_counter()
                jax.block_until_ready(call())  # type: ignore[no-untyped-call]
                taken[name].append(time.perf_counter() - start)
    return taken


def _compared(row: Row, rows: dict[str, Row], case: Case) -> Row:
    if row.seconds is None:
        return row
    ours, scan = (rows[name].seconds if name in rows else None for name in (OURS, SCAN))
    return evolve(
        row,
        over_ours=row.seconds / ours if ours else None,
        over_scan=row.seconds / scan if scan else None,
        gigabytes=case.kv_bytes / row.seconds / 1e9,
    )


def machine() -> dict[str, str]:
    """The machine and the versions of a run."""
    found = {"device": jax.devices()[0].device_kind, "cores": str(os.cpu_count())}
    found["python"] = platform.python_version()
    found["load"] = " ".join(f"{load:.1f}" for load in os.getloadavg())
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _title(size: Size) -> str:
    return (
        f"{size.sequences} sequences x {size.cells} cells, pages of {size.page_size}, {size.dtype}"
    )


def show(rows: list[Row], size: Size) -> None:
    """Print one table for all cases, and the machine."""
    table = Table("case", "candidate", "ms", "calls", "x ours", "x scan", "GB/s", "target")
    for row in rows:
        numbers = (row.over_ours, row.over_scan, row.gigabytes)
        cells = ["" if number is None else f"{number:.2f}" for number in numbers]
        took = "" if row.seconds is None else f"{row.seconds * 1e3:.1f}"
        table.add_row(row.case, row.name, took, str(row.calls), *cells, row.verdict)
    console = Console(width=140)
    console.print(_title(size))
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in machine().items()))


def to_json(rows: list[Row], size: Size, seconds: float) -> str:
    """One JSON object; its verdict is whether ours is right."""
    wrong = any(row.name == OURS and row.problem for row in rows)
    content = {
        "command": "peers",
        "verdict": "fails" if wrong else "holds",
        "seconds": round(seconds, 3),
        "size": asdict(size),
        "machine": machine(),
        "rows": [asdict(row) | {"target": row.target, "verdict": row.verdict} for row in rows],
    }
    return json.dumps(content, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(main())
