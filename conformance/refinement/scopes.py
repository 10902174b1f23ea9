"""`make refine`: the scopes that are refined completely, a process for each, and their table.

With open pages a scope is complete up to renaming; without a queue, names are then sampled.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from rich.console import Console
from rich.table import Table

from conformance.exploration.instances import PACKED

FOLDER: Final = Path(".kvspec/refine")
"""The folder of results, and of checkpoints from which an interrupted scope goes on."""


@frozen
class Scope:
    """A rung at a geometry (pages, slots, page_size, pages_per_seq), with a window or none.

    words: further options.
    """

    rung: str
    sizes: tuple[int, int, int, int]
    words: tuple[str, ...] = ()
    window: int | None = None

    @property
    def geometry(self) -> str:
        """The sizes in the form of the command line."""
        names = ("pages", "slots", "page_size", "pages_per_seq")
        sizes = [f"{name}={size}" for name, size in zip(names, self.sizes, strict=True)]
        return ",".join(sizes if self.window is None else [*sizes, f"window={self.window}"])

    @property
    def name(self) -> str:
        """The name of its files, without a suffix."""
        windows = () if self.window is None else (f"window={self.window}",)
        return "-".join([self.rung, *map(str, self.sizes), *windows, *self.words])


SCOPES: Final = (
    Scope("sharing", (4, 3, 2, 2)),
    Scope("sharing", (6, 3, 2, 3)),
    Scope("sharing", (16, 4, 4, 4), ("--pages", "open")),
    Scope("lifecycle", (3, 2, 2, 2)),
    Scope("lifecycle", (4, 2, 2, 2)),
    Scope("lifecycle", (5, 3, 2, 2), ("--pages", "open")),
    Scope("scheduling", (1, 3, 2, 2)),
    Scope(
        "scheduling",
        (3, 2, 2, 2),
        ("--pages", "open", "--stop-len", "2", "--leave-out", "enqueue"),
    ),
    Scope("rollback", (2, 1, 2, 3)),
    Scope("rollback", (2, 2, 2, 2)),
    Scope("window", (3, 1, 2, 3), window=2),
    Scope("window", (3, 2, 1, 3), window=2),
    Scope("chunks", (2, 2, 2, 2)),
    Scope("preemption", (2, 2, 2, 2)),
    Scope("flights", (2, 2, 1, 3)),
    Scope("prefix", (2, 2, 2, 2)),
    Scope("prefix", (3, 2, 1, 3)),
    Scope("prefix", (4, 3, 1, 3), ("--pages", "open")),
)


def main() -> int:
    """Refine every scope; 0 if all hold, otherwise the greatest exit status."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    table = Table(
        "rung", "pages, slots, page size, pages per sequence", "options", "states", "transitions",
        "illegal", "checked", "singly", "mismatches", "seconds", "over the loop", "verdict",
    )  # fmt: skip
    worst = 0
    for scope in SCOPES:
        status, found = _run(scope)
        worst = max(worst, status)
        counts = ("states", "transitions", "illegal", "checked", "checked_unbatched", "mismatches")
        table.add_row(
            scope.rung,
            ", ".join(map(str, scope.sizes)) + (f"; window {scope.window}" if scope.window else ""),
            " ".join(scope.words),
            *(f"{found.get(name, 0):,}" for name in counts),
            f"{found.get('seconds', 0):.0f}",
            f"{found['times_the_unbatched_loop']} x" if "times_the_unbatched_loop" in found else "",
            str(found.get("verdict", "undecided")),
        )
    Console(width=160).print(table)
    return worst


def _run(scope: Scope) -> tuple[int, dict[str, Any]]:
    result = FOLDER / f"{scope.name}.json"
    result.unlink(missing_ok=True)
    words = ["--rung", scope.rung, "--geometry", scope.geometry, *scope.words]
    words += ["--json", str(result), "--checkpoint", str(FOLDER / f"{scope.name}.npz")]
    words += ["--measure"] * (scope.rung == PACKED and not scope.words)
    command = [sys.executable, "-m", "kvspec", "refine", *words]
    status = subprocess.run(command, check=False).returncode
    return status, json.loads(result.read_text()) if result.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
