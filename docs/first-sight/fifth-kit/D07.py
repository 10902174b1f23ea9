"""`explore --pages open` is stopped by `--states`, and resumed from its checkpoint.

docs/explore.md: "A resumed run ends in the same graph, with the states in the same order, as an
uninterrupted one", and its table has 96 states and 848 transitions for 4 pages, 3 slots, pages of 2
cells, rows of 2 pages, up to renaming. So the resumed run must have those numbers.
"""

import json
import tempfile
from pathlib import Path

from common_d import conclude, kvspec

with tempfile.TemporaryDirectory() as folder:
    words = [
        "explore", "--pages", "open", "--rung", "sharing",
        "--geometry", "pages=4,slots=3,page_size=2,pages_per_seq=2", "--checkpoint", "e.npz",
    ]
    first = kvspec(*words, "--states", "20", folder=folder)
    assert first.returncode == 3, first.stderr
    second = kvspec(*words, "--json", "e.json", folder=folder)
    found = json.loads((Path(folder) / "e.json").read_text())
conclude((0, 96, 848), (second.returncode, found["states"], found["transitions"]))
