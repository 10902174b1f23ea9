"""The compilers of TPUs, and the gates for what they say of the kernel at a few grid points.

A mutant is killed where a grid point is lost, or takes more vector memory or more cycles. The
compiler reads its settings once: the process must have been started with `environment`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from conformance.kernels.batches import PLAIN
from conformance.kernels.compile import baseline, compiling_process, launch
from conformance.kernels.compile.grid import MODELS, Cell, Heads
from conformance.kernels.compile.job import Job
from conformance.kernels.compile.outcome import Compiled, CompiledData
from conformance.kernels.kernel_under_test import OURS
from conformance.lockstep.watchdog import Watchdog

SECONDS: Final = 300.0
"""How long a grid point may take before it counts as hanging."""
FOLDER: Final = "KVSPEC_GATES"
"""The variable with the folder of the figures."""
POINTS: Final = (
    Cell(heads=MODELS["llama-3-8b"], page_size=16, chip="v5e"),
    Cell(
        heads=Heads(8, 1, 128),
        page_size=32,
        chip="v5p",
        kv="float8_e4m3fn",
        tokens=32,
        append=True,
    ),
    Cell(heads=MODELS["llama-2-7b"], page_size=256, chip="v4", positions=256),
)
"""Grid points with one core and two, of 16 bits and 8, with few tokens and new cells, and where the
vector memory is nearly full.
"""
_BEFORE: Final[list[CompiledData]] = []
"""The grid points of the kernel without a mutant, from the first call."""


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """The environment of a process that judges so. Raises RuntimeError without the compiler."""
    lacking = launch.missing()
    if lacking:
        raise RuntimeError(f"no compiler for TPUs: {lacking}")
    with TemporaryDirectory(prefix="kvspec-gates-") as folder:
        yield {**launch.environment(Path(folder)), FOLDER: folder}


def judge(watchdog: Watchdog) -> str | None:
    """The first regression at a grid point; the first call is without a mutant."""
    found: list[CompiledData] = []
    for cell in POINTS:
        watchdog.begin((), SECONDS)
        try:
            found.append(_compiled(cell).as_dict())
        finally:
            watchdog.end()
        worse = baseline.regressions(_BEFORE, found)
        if worse:
            return worse[0]
    _BEFORE[:] = _BEFORE or found
    return None


def _compiled(cell: Cell) -> Compiled:
    folder = Path(os.environ[FOLDER])
    shutil.rmtree(folder / launch.DUMP, ignore_errors=True)
    result = str(folder / launch.RESULT)
    job = Job(kernel=OURS, cell=cell, options=PLAIN, given=None, result=result)
    nothing = Compiled(kernel=OURS, cell=cell, verdict="undecided")
    return launch.read(nothing, compiling_process.work(job), folder)
