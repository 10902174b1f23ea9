"""A page that no row has shown yet may be shown later by any row that still has it.

Policy "any" (docs/recordings.md: "A page that is not shown is unknown until it is shown, and fixed
from then on"), pages of 2 cells. Slot 0 allocates and writes positions 0 and 1 in one page without
showing its row. Slot 1 is cloned from it and shares the page, since it is full; its row shows page
5. Slot 0 is freed. Slot 1 still has page 5, so its row is [5] and counts[5] is 1: these lines are
legal. Slot 1 goes on (position 2 in page 7): its row is [5, 7]. All lines are legal, and the
recording holds with --require nothing (exit status 0).
"""

import json
import os
import subprocess
import sys
import tempfile

lines = [
    {"kvspec": "recording", "version": 2, "shows": [],
     "geometry": {"pages": 8, "page_size": 2, "slots": 2, "pages_per_seq": 3}, "policy": "any"},
    {"step": "Reserve", "slot": 0},
    {"step": "Assign", "slot": 0, "prompt": [0, 0], "params": {"max_new": 3}, "request": 1},
    {"step": "Allocate", "batch": [[0, 0], [0, 1]]},
    {"step": "Write", "batch": [[0, 0], [0, 1]]},
    {"step": "Clone", "parent": 0, "child": 1, "choice": 1,
     "saw": {"rows": {"1": [5]}, "counts": {"5": 2}}},
    {"step": "Free", "slot": 0, "saw": {"rows": {"0": [], "1": [5]}, "counts": {"5": 1}}},
    {"step": "Allocate", "batch": [[1, 2]], "saw": {"rows": {"1": [5, 7]}, "counts": {"5": 1}}},
    {"step": "Free", "slot": 1, "saw": {"counts": {"5": 0, "7": 0}, "free": 8}},
]
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "r.jsonl")
    with open(path, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    code = "import sys; from conformance.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "validate", path, "--require", "nothing"],
                          cwd=folder, capture_output=True, text=True)
print(done.stdout, done.stderr[-600:], done.returncode)
sys.exit(0 if done.returncode == 0 else 1)
