"""A line of a results file that is read while it is being written is read by the next call.

`Results.read`: "The lines added since the last call." `cut`: "whether the last line is incomplete,
as after a process was killed while it wrote". Another process has written one whole line and half
of a second one: the first read gives line 1, and cut is true. Then the other process writes the
rest of line 2. The second read gives line 2 whole, cut is false, and nothing is damaged.
"""

import json
import sys
import tempfile
from pathlib import Path

from conformance.files.results import Results

one = json.dumps({"stamp": "a", "record": 1}) + "\n"
two = json.dumps({"stamp": "a", "record": 2}) + "\n"
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "r.jsonl"
    path.write_text(one + two[:20])
    results = Results(path, key="record", command="kernel")
    first, cut = [row["record"] for row in results.read()], results.cut
    with path.open("a") as file:
        file.write(two[20:])
    second = [row["record"] for row in results.read()]
    seen = first, cut, second, results.cut, results.damaged
print(seen)
sys.exit(0 if seen == ([1], True, [2], False, []) else 1)
