"""The compilers of TPUs, and the gates for what they say of the kernel at a few grid points.

A mutant is killed where a grid point is lost, or takes more vector memory or more cycles; or where
one of many points, which are not compiled, has no block sizes any more. The compiler reads its
settings once: the process must have been started with `environment`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
import numpy as np

from conformance.kernels.batches import PLAIN
from conformance.kernels.compile import baseline, compiling_process, launch
from conformance.kernels.compile.grid import BITS, MODELS, Cell, Heads
from conformance.kernels.compile.job import Job
from conformance.kernels.compile.outcome import Compiled, CompiledData
from conformance.kernels.kernel_under_test import OURS
from conformance.lockstep.watchdog import Watchdog
from impl.attention.tpu import shape_of
from impl.attention.tpu.blocks import CHIPS
from spec.vocabulary import InvalidInput

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
PLANNED: Final = 1500
"""The points of which only block sizes are asked for."""
_BEFORE: Final[list[CompiledData]] = []
"""The grid points of the kernel without a mutant, from the first call."""
_WITH_BLOCKS: Final[list[Cell]] = []
"""The points that have block sizes without a mutant, from the first call."""


class _Array(NamedTuple):
    """What the planner asks of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


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
    if not _WITH_BLOCKS:
        _WITH_BLOCKS[:] = filter(has_blocks, drawn(PLANNED))
    for cell in _WITH_BLOCKS:
        try:
            found_some = has_blocks(cell)
        except Exception as error:  # a mutant may raise anything
            return f"{cell}: it had block sizes, and now it raises {error!r}"
        if not found_some:
            return f"{cell}: it had block sizes, and now it has none"
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


def drawn(count: int) -> Iterator[Cell]:
    """Points of any sizes, most of them large for the vector memory of their chip."""
    rng = Random(0)
    for _ in range(count):
        heads = rng.choice((1, 2, 4, 8, 10, 16, 32, rng.randint(1, 48)))
        group = rng.choice((1, 4, 8, 16, rng.randint(1, 24)))
        page_size, kind = 2 ** rng.randint(0, 13), rng.choice([*BITS])
        yield Cell(
            heads=Heads(heads * group, heads, rng.choice((64, 128, 256))),
            page_size=page_size,
            chip=rng.choice(("v4", "v4", *CHIPS)),
            kv=kind,
            q="float32" if kind == "float32" else "bfloat16",
            tokens=rng.choice((1, 32, 256, 4096)),
            seqs=4,
            positions=max(16, page_size * rng.choice((1, 2, 16, 300))),
            append=bool(rng.getrandbits(1)),
        )


def has_blocks(cell: Cell) -> bool:
    """Whether the kernel finds block sizes for it."""
    heads = cell.heads
    q = _Array((cell.tokens, heads.q, heads.dim), jnp.dtype(cell.q))
    pool = _Array(cell.pool(of_rows=True), jnp.dtype(cell.kv))
    table = _Array((cell.seqs, cell.pages_per_seq), jnp.dtype("int32"))
    try:
        shape_of(q, pool, table, page_size=cell.page_size, chip=cell.chip, append=cell.append)
    except InvalidInput:
        return False
    return True


def _compiled(cell: Cell) -> Compiled:
    folder = Path(os.environ[FOLDER])
    shutil.rmtree(folder / launch.DUMP, ignore_errors=True)
    result = str(folder / launch.RESULT)
    job = Job(kernel=OURS, cell=cell, options=PLAIN, given=None, result=result)
    nothing = Compiled(kernel=OURS, cell=cell, verdict="undecided")
    return launch.read(nothing, compiling_process.work(job), folder)
