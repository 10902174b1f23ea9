"""A truncation that leaves allocated cells without contents counts them as written.

docs/actions.md, Truncate: "`allocated` becomes `length`. `written` becomes `length` if it was
above." Slot 0 has two written cells and six allocated ones, and is cut at 4. So `allocated` becomes
4, and `written`, which was 2 and not above 4, stays 2.
"""
from common_a import *

ours = engine(Geometry(pages=6, page_size=4, slots=2, pages_per_seq=2))
begin(ours, 0, (1, 2), Params(max_new=4), 1)
ours.apply(act.Allocate(span(0, 2, 6)))
ours.apply(act.Truncate(0, 4))
seen = ours.observe()
compare({"allocated": 4, "written": 2, "committed": 2},
        {"allocated": seen.allocated[0], "written": seen.written[0], "committed": seen.committed[0]})
