"""The statistics that were read before a truncation are given again after it.

`Engine.stats` says "The statistics of the state", pages in use and free pages are those of now
(docs/sources.md, "Page statistics"), and Truncate releases "pages without a cell"
(docs/actions.md). Slot 0 has eight allocated cells in two of six pages, and two of them are
written; it is cut at 2. So one page is in use and five are free.
"""
from common_a import *

ours = engine(Geometry(pages=6, page_size=4, slots=2, pages_per_seq=2))
begin(ours, 0, (1, 2), Params(max_new=4), 1)
ours.apply(act.Allocate(span(0, 2, 8)))
of = lambda stats: {name: stats[name] for name in ("pages_in_use", "free_pages")}
before = of(ours.statistics())
ours.apply(act.Truncate(0, 2))
compare(({"pages_in_use": 2, "free_pages": 4}, {"pages_in_use": 1, "free_pages": 5}),
        (before, of(ours.statistics())))
