"""A cache of compiled grid points, with which an interrupted run is resumed.

The file has one JSON object per line. Records of another compiler, of another version of this bench
or, if the kernel is ours, of another version of the kernel are left in the file and not used.
Unknown kernels are compiled again: the dependencies of their records cannot be determined.
"""

import hashlib
import importlib.metadata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import NoneType
from typing import Final, cast

from conformance.files.results import Results
from conformance.kernels import kernel_under_test
from conformance.kernels.compile import launch, outcome
from conformance.kernels.compile.grid import Cell
from conformance.kernels.compile.outcome import NOT_ASKED, Compiled, CompiledData
from conformance.kernels.parallelism import cores
from conformance.runtime import processes

PARTS: Final = ("jax", "jaxlib", "libtpu")
SOURCES: Final = ("conformance/kernels/kernel_under_test.py", "conformance/kernels/compile")
TELLS: Final = ("baseline.py", "cache.py", "reproduce.py", "table.py")
"""Modules of the bench that only report records."""
OURS: Final = ("impl/attention", "impl/cache")
OWN_SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "jax": (),
    "tpu-inference": ("conformance/kernels/tpu_inference.py",),
}
"""Further dependencies of a kernel's record; for others, all of OURS."""


def stamp(kernel: str) -> str:
    """The versions and sources, of the bench and of ours, on which a kernel's record depends."""
    digest = hashlib.sha256()
    for name in (*PARTS, *filter(None, [kernel_under_test.INSTALLED.get(kernel)])):
        try:
            digest.update(f"{name} {importlib.metadata.version(name)}".encode())
        except importlib.metadata.PackageNotFoundError:
            digest.update(f"no {name}".encode())
    for path in sources(kernel):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def sources(kernel: str) -> list[Path]:
    """The source files on which a record of this kernel depends."""
    root, found = Path(__file__).parents[3], list[Path]()
    for part in (*SOURCES, *OWN_SOURCES.get(kernel, OURS)):
        at = root / part
        found += [at] if at.is_file() else sorted(at.rglob("*.py"))
    tells = {Path(__file__).with_name(name) for name in TELLS}
    return [path for path in found if path not in tells]


def load(results: Results, kernel: str, *, plain: Collection[Cell] = ()) -> dict[Cell, Compiled]:
    """The records of this kernel. Raises InvalidInput for a file of another kind.

    plain: grid points that need only a verdict.
    """
    now, found = stamp(kernel), dict[Cell, Compiled]()
    for row in results.read():
        if kernel in kernel_under_test.KNOWN and row["stamp"] == now:
            record = _record(row["record"])
            if record is None:
                results.spoilt()
            elif record.kernel == kernel and record.not_known != NOT_ASKED:
                found[record.cell] = record
            elif record.kernel == kernel and record.cell in plain:
                found.setdefault(record.cell, record)
    return found


def _record(data: object) -> Compiled | None:
    """The record from plain data; None if it is damaged."""
    try:
        record = outcome.from_dict(cast(CompiledData, data))  # it is, if it comes back the same
        counts = (record.vmem, record.spilled, record.capacity, record.smem)
        hash(record.cell)
        whole = record.as_dict() == data and all(type(one) in (int, NoneType) for one in counts)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
        return None
    return record if whole and record.verdict in outcome.VERDICTS else None


def compile_all(
    cells: Sequence[Cell],
    kernel: str,
    *,
    path: Path,
    update: Callable[[float, str], None],
    seconds: float = launch.SECONDS,
    plain: Collection[Cell] = (),
) -> Iterator[Compiled]:
    """The records of the file, then the others, as many at once as there are cores; each is kept.

    plain: grid points that need only a verdict.
    """
    kernel = launch.SHORT.get(kernel, kernel)
    begun = stamp(kernel)
    results = results_of(path)
    held = load(results, kernel, plain=plain)
    known = [held[cell] for cell in cells if cell in held]
    yield from known
    update(len(known), "")
    left = [cell for cell in cells if cell not in held]
    with ThreadPoolExecutor(cores()) as pool:
        work = [
            pool.submit(
                launch.compile_cell, cell, kernel, seconds=seconds, figures=cell not in plain
            )
            for cell in left
        ]
        try:
            for done, future in enumerate(as_completed(work), len(known) + 1):
                record = future.result()
                if record.verdict != "undecided":
                    _keep(results, record, begun)
                update(done, str(record.cell))
                yield record
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.end_all()
            raise


def results_of(path: Path) -> Results:
    """The results file of the commands that compile."""
    return Results(path, key="record", command="kernel or compare")


def _keep(results: Results, record: Compiled, begun: str) -> None:
    if stamp(record.kernel) == begun:  # else sources have changed: nobody knows which it is of
        results.add(begun, {"record": record.as_dict()})
