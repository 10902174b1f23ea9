"""A run that --states ends leaves its checkpoint, from which the next one resumes.

docs/explore.md, Checkpoints: the file is written after a level, at most every 20 seconds, and where
`--states` ends the run. The run below visits the first levels of a graph of 6,780 states in a moment, is
undecided (exit status 3, docs/explore.md), and must leave the file. The second run, without the bound,
resumes from it and must find the same 6,780 states and 60,816 transitions, and remove the file.
"""

import json
import tempfile
from pathlib import Path

from common_d import compare, kvspec

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    common = ("--rung", "sharing", "--geometry", "pages=4,slots=3,page_size=2,pages_per_seq=2")
    held = folder / "held"
    first, _ = kvspec("explore", *common, "--states", 500, "--checkpoint", held, folder=folder)
    kept = held.exists()
    second, _ = kvspec(
        "explore", *common, "--checkpoint", held, "--json", folder / "e.json", folder=folder
    )
    result = json.loads((folder / "e.json").read_text())
    seen = (first, kept, second, result["states"], result["transitions"], held.exists())
compare(
    "status, checkpoint kept, status of the second, states, transitions, checkpoint left",
    (3, True, 0, 6780, 60816, False), seen,
)
