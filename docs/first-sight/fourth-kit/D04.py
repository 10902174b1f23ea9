"""With reserve="request" an Assign takes only the pages that the row lacks, so this recording is legal.

Three pages of 2 cells. Positions 0 and 1 are allocated before the prompt is known (docs/recordings.md:
`Allocate` does not need it), which takes one page and leaves two free. The Assign of 4 tokens with
max_new 2 reserves 6 cells, so the row has 3 pages (docs/recordings.md: the line of an Assign shows the
row with the pages for the prompt and its `max_new` tokens); it has one of them already, and the other
two are free. So it is done, and no line is illegal.
"""

import json
import tempfile
from pathlib import Path

from common_d import compare
from conformance.recordings.validate import validate

lines = [
    {"kvspec": "recording", "version": 2, "reserve": "request", "shows": ["used", "rows", "counts"],
     "geometry": {"pages": 3, "page_size": 2, "slots": 1, "pages_per_seq": 3}},
    {"step": "Reserve", "slot": 0, "saw": {"used": {"0": True}}},
    {"step": "Allocate", "batch": [[0, 0], [0, 1]], "saw": {"rows": {"0": [1]}, "counts": {"1": 1}}},
    {"step": "Assign", "slot": 0, "prompt": [0, 0, 0, 0], "params": {"max_new": 2}, "request": 1,
     "saw": {"rows": {"0": [1, 0, 2]}, "counts": {"0": 1, "2": 1}}},
]
with tempfile.TemporaryDirectory() as name:
    path = Path(name) / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = validate(path).found
compare("the first illegal line", "None", str(found))
