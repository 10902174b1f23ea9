"""validate: a page that a row shows later is one that no other row has."""
from common import *
P = {"max_new": 1}
def begun(slot):
    return [{"step": "Reserve", "slot": slot}, {"step": "Assign", "slot": slot, "prompt": [5, 6], "params": P, "request": slot}]
def lines(page):
    """Slot 0 takes page 1, and shows it. Slot 1 takes a page that its row shows only when it is written."""
    return [*begun(0), {"step": "Allocate", "batch": [[0, 0]], "saw": {"rows": {"0": [1]}}}, *begun(1),
            {"step": "Allocate", "batch": [[1, 0]]}, {"step": "Write", "batch": [[1, 0]], "saw": {"rows": {"1": [page]}}}]
# By hand: header is line 1, and the Write line is 8 (2 + 1 + 2 + 1 + 1 lines after it). Page 0 was free: legal. Page 1
# has been slot 0's since line 4, and there is no Clone: illegal.
seen("page 0", validated(SIZES, *lines(0)).found, None)
found = validated(SIZES, *lines(1)).found
seen("page 1", found and (found.line, found.what), (8, "rows[1]"))
