"""The compilation of a kernel for each TPU, on a machine without one.

`compile_cell` starts a process (`compiling_process`) that compiles one grid point ahead of time,
and reads the compiler's own memory report and schedule. Nothing is skipped silently: without a
result a grid point is `undecided`, with the reason.
"""

import json
import os
import signal
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from attrs import evolve

from conformance.kernels import kernel_under_test
from conformance.kernels.batches import PLAIN, Options
from conformance.kernels.compile import bundles, calls, loops, vmem
from conformance.kernels.compile.cost import Cost
from conformance.kernels.compile.grid import Cell
from conformance.kernels.compile.job import SCHEDULES, Found, Job
from conformance.kernels.compile.outcome import NOT_ASKED, Compiled
from conformance.kernels.compile.reasons import short
from conformance.runtime import processes
from conformance.runtime.optional_dependencies import EXTRAS
from spec.vocabulary.errors import InvalidInput

SECONDS: Final = 600.0
"""Time limit of one grid point."""
PROCESS: Final = "conformance.kernels.compile.compiling_process"
ENVIRONMENT: Final = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
}
"""Settings for libtpu without a TPU. Any type will do: the topology names the target."""
UNCACHED: Final = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
"""Disables the cache, since a cached program leaves no report."""
PASSES: Final = "packed-bundles-post-ra|vmem_report"
RESULT: Final = "result.json"
DUMP: Final = "dump"
REPORTS: Final = "*vmem_report.html"
SHORT: Final = {long: short for short, long in kernel_under_test.KNOWN.items()}
"""Known kernels have a short name."""
NEEDED: Final = ("jax", "libtpu")
FROM_OUTSIDE: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that do not come from the compiler."""


def missing() -> str | None:
    """The packages that compilation lacks, and how to install them; None if none."""
    for module in NEEDED:
        if find_spec(module) is None:
            return f"{module} is missing. Run pip install 'kvspec[{EXTRAS[module]}]'."
    return None


def compile_cell(
    cell: Cell,
    kernel: str,
    *,
    seconds: float = SECONDS,
    options: Options = PLAIN,
    given: Mapping[str, int] | None = None,
    figures: bool = True,
) -> Compiled:
    """Compile one grid point in a process of its own.

    kernel: a short name or MODULE:FUNCTION, see `kernel_under_test`. options: such as scale, by our
    name. given: the kernel's own arguments, such as block sizes; None for the known ones of kernels
    with a short name. figures: False for the verdict alone, which takes a fraction of the time.
    Raises InvalidInput if there is no such kernel.
    """
    kernel = SHORT.get(kernel, kernel)
    nothing = Compiled(kernel=kernel, cell=cell, verdict="undecided", given=dict(given or {}))
    lacking = missing()
    if lacking:
        return evolve(nothing, reason=lacking, cause="missing")
    with tempfile.TemporaryDirectory(prefix="kvspec-kernel-") as name:
        folder = Path(name)
        job = Job(
            kernel=kernel,
            cell=cell,
            options=options,
            given=None if given is None else dict(given),
            result=str(folder / RESULT),
            calls=calls.of(cell) if figures else (),
            dump=str(folder / DUMP),
        )
        found = _run(job.to_json(), folder, seconds, figures=figures)
        return read(nothing, found, folder, figures=figures)


def read(nothing: Compiled, found: Found, folder: Path, *, figures: bool = True) -> Compiled:
    """The record of what a compilation has found, with the figures of its dump in a folder.

    nothing: the record without any of it. Raises InvalidInput if there is no such kernel.
    """
    if "error" in found:
        raise InvalidInput(**found["error"])
    record = _record(nothing, found)
    if record.verdict != "ok":  # only of a cell that compiled there is a whole dump
        return record
    if not figures:
        return evolve(record, not_known=NOT_ASKED)
    return _measured(_with_costs(record, found), found.get("sizes"), folder)


def _with_costs(record: Compiled, found: Found) -> Compiled:
    """The record with the costs of the calls that its program serves."""
    known = {cost["call"]: Cost(**cost) for cost in found.get("costs", ())}
    costs = tuple(
        known.get(call.name, Cost(call=call.name, why="the simulation did not come to its end"))
        for call in calls.of(record.cell)
    )
    return evolve(record, costs=costs, around=tuple(found.get("around", ())))


def environment(folder: Path, *, figures: bool = True) -> dict[str, str]:
    """The environment of a process that compiles, and writes the figures to this folder."""
    flags = _dumping(folder / DUMP) if figures else ""
    return {**os.environ, **ENVIRONMENT, **UNCACHED, "LIBTPU_INIT_ARGS": flags}


def _run(job: str, folder: Path, seconds: float, *, figures: bool) -> Found:
    """Run the job; return its last output, and how the process ended."""
    settings = environment(folder, figures=figures)
    with (folder / "stderr").open("wb") as errors:
        process = processes.start(PROCESS, job, environment=settings, output=errors, errors=errors)
        ended = processes.finish(process, seconds=seconds)
    said = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
    found = _written(folder / RESULT)
    if "error" in found or "seconds" in found:
        return found
    ending = _ending(ended, found.get("stage", "starting"), said, seconds)
    return {**found, **ending}


def _dumping(folder: Path) -> str:
    """The flags that make the compiler write its memory report and its schedule to a folder."""
    options = {
        "xla_jf_dump_to": folder,
        "xla_jf_dump_llo_text": "true",
        "xla_jf_dump_llo_pass_label_regex": PASSES,
    }
    return " ".join(f"--{name}={value}" for name, value in options.items())


def _written(result: Path) -> Found:
    try:
        found: Found = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"verdict": "undecided"}
    return found


def _ending(ended: int | None, stage: str, said: str, seconds: float) -> Found:
    """The verdict for a process without one. A crash of the compiler fails the kernel."""
    if ended is None:
        why = f"no answer within {seconds:g} seconds, {stage}; allow more"
        return {"verdict": "undecided", "cause": "timeout", "reason": why}
    last = short(next((line for line in reversed(said.splitlines()) if line.strip()), "no word"))
    name = signal.Signals(-ended).name if ended < 0 else f"status {ended}"
    crashed = stage == "compiling" and ended < 0 and -ended not in FROM_OUTSIDE
    return {
        "verdict": "fails" if crashed else "undecided",
        "cause": "crash" if crashed else "process",
        "reason": f"the process ended with {name}, {stage}: {last}",
    }


def _record(nothing: Compiled, found: Found) -> Compiled:
    verdict = found["verdict"]
    assert verdict != "bad input"  # which was raised
    return evolve(
        nothing,
        verdict=verdict,
        reason=found.get("reason", nothing.reason),
        cause=found.get("cause", nothing.cause),
        smem=found.get("smem", nothing.smem),
        pool=found.get("pool", nothing.pool),
        temporary=found.get("temporary", nothing.temporary),
        cores=found.get("cores", nothing.cores),
        given=found.get("given", nothing.given),
        seconds=found.get("seconds", nothing.seconds),
        versions=found.get("versions", nothing.versions),
    )


def _measured(record: Compiled, sizes: Mapping[str, int] | None, folder: Path) -> Compiled:
    """The record with the figures of the compiler's dump."""
    dump = folder / DUMP
    try:
        memory = vmem.parse(_only(dump, REPORTS))
    except ValueError as error:
        return evolve(record, not_known=f"vector memory and cycles: {error}")
    record = evolve(record, vmem=memory.used, spilled=memory.spilled, capacity=memory.capacity)
    try:
        schedules = _schedules(dump, memory.kernels)
    except ValueError as error:
        return evolve(record, not_known=f"cycles: {error}")
    every = loops.largest(schedules).loops
    record = evolve(record, loops=tuple(loop for loop in every if loop.products))
    known = loops.count(record.kernel, schedules, sizes)
    return evolve(record, decode=known.decode, prefill=known.prefill, not_known=known.why)


def _only(dump: Path, pattern: str) -> str:
    found = sorted(dump.glob(pattern))
    if len(found) != 1:
        raise ValueError(f"{len(found)} files like {pattern} from the compiler, 1 expected")
    return found[0].read_text(encoding="utf-8")


def _schedules(dump: Path, kernels: tuple[str, ...]) -> dict[str, bundles.Schedule]:
    """The schedule of each of these kernels that has one. Raises ValueError if none has."""
    found = {
        kernel: bundles.parse(path.read_text(encoding="utf-8", errors="replace"))
        for path in sorted(dump.glob(SCHEDULES))
        for kernel in kernels
        if f"-{kernel}-" in path.name
    }
    if not found:
        raise ValueError("no schedule of a kernel from the compiler")
    return found
