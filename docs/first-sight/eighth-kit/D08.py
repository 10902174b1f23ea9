"""A wrong result of an Allocate whose own page is shown, after another page was not shown.

docs/recordings.md: every result of the table is compared; of an Allocate the destinations are
`page * page_size + offset`. Page 5, offset 0, pages of 4: 20, and the line says 21.
"""

import sys
import tempfile
from pathlib import Path

from conformance.recordings.validate import validate
from conformance.recordings.writer import HistoryWriter

sizes = {"pages": 8, "page_size": 4, "slots": 2, "pages_per_seq": 4}
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "run.jsonl"
    with HistoryWriter(path, **sizes) as history:
        history.step("Reserve", slot=0)
        history.step("Allocate", batch=[[0, 0]])
        history.step("Reserve", slot=1)
        history.step("Allocate", batch=[[1, 0]], result=[21], saw={"rows": {1: [5]}})
    outcome = validate(path)
print(outcome.found or "legal")
sys.exit(outcome.found is None or outcome.found.line != 5)
