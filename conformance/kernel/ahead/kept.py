"""Cells that are compiled already: a run that was cut off goes on where it was.

The file has one JSON object per line. What was found with another compiler or from other sources of
ours is left alone and not used. Kernels that we do not know are compiled anew: what else their
result depends on cannot be seen from here.
"""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from conformance.kernel import subject
from conformance.kernel.ahead import compiled, compiler
from conformance.kernel.ahead.compiled import Compiled
from conformance.kernel.ahead.grid import Cell

PARTS: Final = ("jax", "jaxlib", "libtpu")
SOURCES: Final = ("impl/attention", "conformance/kernel")
AT_ONCE: Final = os.cpu_count() or 1


def stamp() -> str:
    """What a record depends on: versions, and our sources of kernels and of this bench."""
    digest = hashlib.sha256()
    for name in PARTS:
        try:
            digest.update(f"{name} {importlib.metadata.version(name)}".encode())
        except importlib.metadata.PackageNotFoundError:
            digest.update(f"no {name}".encode())
    root = Path(__file__).parents[3]
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def load(path: Path, kernel: str) -> dict[Cell, Compiled]:
    """What the file has of this kernel; a line that was cut off is passed over."""
    now, found = stamp(), dict[Cell, Compiled]()
    if kernel not in subject.KNOWN:
        return found
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            held = json.loads(line)
        except ValueError:
            continue
        if held["stamp"] == now and held["record"]["kernel"] == kernel:
            record = compiled.from_dict(held["record"])
            found[record.cell] = record
    return found


def compile_all(
    cells: Sequence[Cell],
    kernel: str,
    *,
    path: Path,
    update: Callable[[float, str], None],
    seconds: float = compiler.SECONDS,
) -> Iterator[Compiled]:
    """Those of the file, then the rest, as many at once as there are cores; each is kept."""
    kernel, begun = compiler.SHORT.get(kernel, kernel), stamp()
    held = load(path, kernel)
    known = [held[cell] for cell in cells if cell in held]
    yield from known
    update(len(known), "")
    path.parent.mkdir(parents=True, exist_ok=True)
    left = [cell for cell in cells if cell not in held]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        work = [pool.submit(compiler.compile_cell, cell, kernel, seconds=seconds) for cell in left]
        try:
            for done, future in enumerate(as_completed(work), len(known) + 1):
                record = future.result()
                if record.verdict != "undecided":
                    _keep(path, record, begun)
                update(done, str(record.cell))
                yield record
        finally:
            pool.shutdown(cancel_futures=True)


def _keep(path: Path, record: Compiled, begun: str) -> None:
    if stamp() != begun:  # sources have changed meanwhile: nobody knows which ones it is of
        return
    text = json.dumps({"stamp": begun, "record": record.as_dict()})
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
        file.flush()
        os.fsync(file.fileno())
