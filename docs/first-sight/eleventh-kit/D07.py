"""A refused Allocate that lacks one page, right after the Allocate that filled the pool: reached."""
import tempfile, json
from pathlib import Path
from common import *
from conformance.cli import contract, validate

# 2 pages; slot 0 takes both of them, so that slot 1, which wants one, lacks exactly one page.
P = {"max_new": 1, "stops": [], "temperature": 0.0, "seed": 0}
lines = [
    {"kvspec": "recording", "version": 2, "policy": "lowest",
     "geometry": {"pages": 2, "page_size": 2, "slots": 2, "pages_per_seq": 2}},
    {"step": "Purge", "slot": 0, "refused": ["SLOT_UNUSED"]},  # the caller has no queue: the specification judges
    {"step": "Reserve", "slot": 0}, {"step": "Assign", "slot": 0, "prompt": [1, 2, 3], "params": P, "request": 1},
    {"step": "Reserve", "slot": 1}, {"step": "Assign", "slot": 1, "prompt": [4], "params": P, "request": 2},
    {"step": "Allocate", "batch": [[0, 0], [0, 1], [0, 2]]},
    {"step": "Allocate", "batch": [[1, 0]], "refused": ["OUT_OF_PAGES"]},
]
path = Path(tempfile.mkdtemp()) / "run.jsonl"
path.write_text("".join(json.dumps(one) + "\n" for one in lines))
found = contract.execute(validate, [str(path), "--require", "one page short"])
seen("exit status of validate --require 'one page short'", found, 0)
