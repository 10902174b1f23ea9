"""An engine that refuses nearly every legal Allocate leaves `adapter check` undecided.

docs/adapters.md: `adapter check` "is undecided if an engine that may refuse more refuses nine in ten of
the legal calls of an action". This engine does only the first cell of slot 0, so that far more than nine
in ten legal Allocates are refused; beside them it rightly refuses illegal ones, for their width, their
positions or their slots. Illegal calls are no legal calls, so they must not count: exit status 3, and the
report must say that the engine mostly refuses.
"""

import json
import tempfile
from pathlib import Path

from common_d import compare, kvspec

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    status, told = kvspec(
        "adapter", "check", "d10_engine:Adapter", "--in-process", "--json", folder / "a.json",
        folder=folder,
    )
    skipped = json.loads((folder / "a.json").read_text())["not_checked"]
print(*(line for line in told.splitlines() if line.startswith("  Allocate ")), sep="\n")
compare(
    "exit status, and whether it is said",
    (3, True), (status, any("it mostly refuses: Allocate" in line for line in skipped)),
)
