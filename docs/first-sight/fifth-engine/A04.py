"""The pages of a freed sequence are erased, also one that a clone still reads.

docs/actions.md, Free: every count falls by 1, and only "a page whose count becomes 0 is free, and
its cells die". The prompt of five tokens fills page 0, which the clone shares (count 2), and begins
page 1, which is copied. After the parent is freed the count of page 0 is 1, so that the five cells
of the clone hold what they held before.
"""
from common_a import *

ours = engine(Geometry(pages=6, page_size=4, slots=2, pages_per_seq=2))
begin(ours, 0, (1, 2, 3, 4, 5), Params(max_new=3), 1)
ours.apply(act.Clone(0, 1, 1))
before = cells(ours, 1, 5)
ours.apply(act.Free(0))
compare(before, cells(ours, 1, 5))
