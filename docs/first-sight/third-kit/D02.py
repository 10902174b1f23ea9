"""With lazy copies two sequences that share a partial page and append in it in one batch take one
page: slot 0 copies while the count is 2, and slot 1, by then the last owner, keeps page 0. So the
recording of an engine that does that is legal.
"""
from common import *

found = validated(
    {"geometry": {"pages": 4, "page_size": 2, "slots": 2, "pages_per_seq": 2}, "policy": "lowest",
     "copy": "lazy", "shows": ["rows", "counts"]},
    {"step": "Reserve", "slot": 0},
    {"step": "Assign", "slot": 0, "prompt": [7], "params": {"max_new": 2}, "request": 1},
    {"step": "Allocate", "batch": [[0, 0]], "saw": {"rows": {"0": [0]}, "counts": {"0": 1}}},
    {"step": "Write", "batch": [[0, 0]]},
    {"step": "Clone", "parent": 0, "child": 1, "choice": 1,
     "saw": {"rows": {"1": [0]}, "counts": {"0": 2}}},
    {"step": "Allocate", "batch": [[0, 1], [1, 1]], "result": [3, 1],
     "saw": {"rows": {"0": [1]}, "counts": {"0": 1, "1": 1}}},
).found
seen("the first illegal line of a legal recording", found and str(found), None)
