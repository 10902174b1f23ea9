"""With lazy copies, the sequences that append in a shared page copy it in ascending order of their
slots while its count is above 1, so that the last owner keeps it. Slots 0, 1 and 2 share page 1: slot
0 copies it to page 2, slot 1 to page 3, and slot 2 keeps it.
"""
from common import *

g = geometry(page_size=4, slots=3, pages_per_seq=3)
m, s = start(g, ladder.machine("sharing"), capacity=Capacity(copy="lazy"))
s = run(m, s, act.Reserve(0), act.Append(0, (1, 2, 3, 4, 5, 6)), *written(0, 6))
s = run(m, s, act.Clone(0), act.Clone(0))
seen("rows of the clones", [one.row for one in s.sequences], [(0, 1), (0, 1), (0, 1)])
s = run(m, s, act.Allocate(((0, 6), (1, 6), (2, 6))))
seen("rows", [one.row for one in s.sequences], [(0, 2), (0, 3), (0, 1)])
seen("counts", s.counts, (3, 1, 1, 1, 0, 0, 0, 0))
