"""Window 3, pages of 2. Five tokens are in pages 0, 1, 2; page 0 is released. Position 5 lies in page 2."""
from common import *
m, s = start(geometry(pages=8, page_size=2, slots=2, pages_per_seq=6, window=3), ladder.machine("scheduling", "window"))
request = Request(id=1, prompt=(1, 2, 3, 4, 5), params=Params(max_new=6))
s = run(m, s, act.Prefill((request,)), act.Release(0, 3))
seen("pages wanted by position 5", m.pages_wanted(s, act.Allocate(((0, 5),))), 0)
s = run(m, s, act.Round())
seen("row after the round", s.sequences[0].row, (INVALID, 1, 2))
seen("counts after the round", s.counts, (0, 1, 1, 0, 0, 0, 0, 0))
