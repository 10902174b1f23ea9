"""Window: after a release a row takes no more pages than its positions need."""
from common import *

g = geometry(pages=8, page_size=2, slots=2, pages_per_seq=6, window=3)
m, s = start(g, ladder.machine("scheduling", "window"))
s = run(m, s, act.Prefill((Request(id=1, prompt=(1, 2, 3, 4, 5), params=Params(max_new=6)),)), act.Release(0, 3))
seen("row after the release", s.sequences[0].row, (INVALID, 1, 2))
s = m.step(s, act.Round())  # position 5 is in the third page, which the row has
seen("row after a round", s.sequences[0].row, (INVALID, 1, 2))
seen("free pages", s.counts.count(0), 6)
s = m.step(s, act.Round())  # position 6 begins a page, and page 0 is the lowest free one
seen("row after another round", s.sequences[0].row, (INVALID, 1, 2, 0))
