"""A clone is accepted while the last page of its parent has cells that are not written.

docs/actions.md, Clone: UNWRITTEN if "the parent has allocated cells that are not written"; a refused
action changes nothing. Slot 0 has two written cells and a third that is allocated only, all in page
0. So the clone is refused, and slot 1 stays unused.
"""
from common_a import *

ours = engine(Geometry(pages=6, page_size=4, slots=2, pages_per_seq=2))
begin(ours, 0, (1, 2), Params(max_new=4), 1)
ours.apply(act.Allocate(span(0, 2, 3)))
refused = reasons(ours, act.Clone(0, 1, 1))
seen = ours.observe()
compare({"refused": ["UNWRITTEN"], "used": (True, False)}, {"refused": refused, "used": seen.used})
