"""The engine's caller has the queue: drafts are proposed, written and committed, then one Append.

docs/recordings.md: "Append means that the caller has the queue", and "with Append its machine has no
queue". So no draft ever waits in a queue, and the Write of the draft's cell is legal (with a queue it
would be BATCH_QUEUED). Every line is one that docs/rollback.md allows (known text, propose, allocate,
write, commit, append), so the recording has no illegal line.
"""

import json
import tempfile
from pathlib import Path

from common_d import conclude
from conformance.recordings.validate import validate

lines = [
    {"kvspec": "recording", "version": 2, "policy": "lowest",
     "geometry": {"pages": 4, "page_size": 4, "slots": 2, "pages_per_seq": 2}},
    {"step": "Reserve", "slot": 0},
    {"step": "Assign", "slot": 0, "prompt": [5, 6], "params": {"max_new": 4}, "request": 1},
    {"step": "Allocate", "batch": [[0, 0], [0, 1]], "saw": {"rows": {"0": [0]}}},
    {"step": "Write", "batch": [[0, 0], [0, 1]]},
    {"step": "Propose", "slot": 0, "tokens": [9]},
    {"step": "Allocate", "batch": [[0, 2]]},
    {"step": "Write", "batch": [[0, 2]], "saw": {"written": {"0": 3}, "committed": {"0": 2}}},
    {"step": "Commit", "slot": 0, "length": 3, "saw": {"tokens": {"0": [5, 6, 9]}}},
    {"step": "Append", "slot": 0, "tokens": [3]},
]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = validate(path).found
conclude("no illegal line", "no illegal line" if found is None else str(found))
