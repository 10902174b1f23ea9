"""`page taken again after its release` is reached only if some page was taken twice."""
from common import *
from conformance.rungs.pages import FULL, PAGE_REUSED
P = {"max_new": 1}
def lines(n):
    return [{"step": "Reserve", "slot": 0}, {"step": "Assign", "slot": 0, "prompt": [5, 6, 7], "params": P, "request": 1},
            {"step": "Allocate", "batch": [[0, p] for p in range(n)]}]
# By hand: pool of 2 pages of 2 cells, policy "any", and no row is shown. 4 cells take both pages, each once: the pool
# is full, and no page was taken again.
c = validated(SIZES, *lines(4)).coverage.corners
seen("full, taken again", (c[FULL], c[PAGE_REUSED]), (1, 0))
# After a Free, one more page is the third of two: it was taken before.
again = [{"step": "Free", "slot": 0}, *lines(1)]
c = validated(SIZES, *lines(4), *again).coverage.corners
seen("full, taken again", (c[FULL], c[PAGE_REUSED]), (1, 1))
