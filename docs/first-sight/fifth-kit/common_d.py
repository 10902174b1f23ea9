"""Helpers of the scripts: the comparison, commands, and small engines."""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[2]


def conclude(expected: object, seen: object) -> None:
    """Print both and end: 0 if they are equal, 1 if not."""
    print(f"expected: {expected}\nseen:     {seen}")
    raise SystemExit(0 if seen == expected else 1)


def kvspec(*words: str, folder: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder, with this tree's packages and these modules."""
    paths = os.pathsep.join((str(HOME), str(HERE)))
    return subprocess.run(
        [str(HOME / ".venv" / "bin" / "kvspec"), *words],
        cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=55,
    )


class Blocks:
    """The block allocator of docs/adapters.md; it raises MemoryError before it changes anything."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size, self.free = size, list(range(blocks))
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def open(self, name: int) -> None:
        self.tables[name], self.lengths[name] = [], 0

    def extend(self, name: int, more: int) -> None:
        missing = -(-(self.lengths[name] + more) // self.size) - len(self.tables[name])
        if missing > len(self.free):
            raise MemoryError("no block is free")
        self.tables[name] += [self.free.pop() for _ in range(missing)]
        self.lengths[name] += more

    def release(self, name: int) -> None:
        self.free += self.tables.pop(name)
        del self.lengths[name]
