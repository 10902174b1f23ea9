"""A physical reset erases the pages that are in use, and leaves what freed ones hold.

docs/actions.md, Reset: "PHYSICAL also zeroes the pool", without an exception (docs/sources.md,
"Logical and physical reset", and Engine.reset say the same). Slot 0 writes four cells of page 0 and
is freed, so that no page is in use. After the reset each of the 24 cells
is zero, those of page 0 too.
"""
from common_a import *

ours = engine(Geometry(pages=6, page_size=4, slots=2, pages_per_seq=2))
begin(ours, 0, (1, 2, 3, 4), Params(max_new=3), 1)
ours.apply(act.Free(0))
ours.apply(act.Reset(ResetMode.PHYSICAL))
seen = ours.observe().cells
compare([], [at for at in range(len(seen)) if seen[at] != ours.erased()])
