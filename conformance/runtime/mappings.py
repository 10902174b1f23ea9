"""How many mapped areas of memory this process has, of as many as the system allows.

XLA maps some hundred areas for each program that it compiles for CPUs. A process that reaches the
limit, 65,530 by default on Linux, ends with a segmentation fault.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

AREAS: Final = Path("/proc/self/maps")
LIMIT: Final = Path("/proc/sys/vm/max_map_count")


def share(areas: Path = AREAS, limit: Path = LIMIT) -> float:
    """The share of the limit that is in use; 0 where the system does not say."""
    with suppress(OSError, ValueError):
        most = int(limit.read_text())
        with areas.open("rb") as lines:
            return sum(1 for _ in lines) / max(1, most)
    return 0.0
