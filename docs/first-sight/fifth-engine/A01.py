"""Pages are given in the order in which a batch names their positions, and not by slot.

docs/actions.md, Allocate: `The policy "lowest" takes the lowest free pages, by slot and then by
position`; the batch has its pairs in any order. The pool is empty, and slots 0 and 1 each begin one
page. So slot 0 gets page 0 and slot 1 gets page 1, although slot 1 is named first.
"""
from common_a import *

ours = engine(Geometry(pages=6, page_size=4, slots=3, pages_per_seq=2))
ours.apply(act.Reserve(0))
ours.apply(act.Reserve(1))
plan = ours.apply(act.Allocate(((1, 0), (1, 1), (0, 0))))
seen = ours.observe().rows
compare({"slot 0": 0, "slot 1": 1, "destinations": (0, 4, 5)},
        {"slot 0": seen[0][0], "slot 1": seen[1][0], "destinations": plan.destinations})
