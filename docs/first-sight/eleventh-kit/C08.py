"""One slot and two pages, both taken by a prompt of 3 tokens: a prefill lacks a slot and a page."""
from common import *
m, s = start(geometry(pages=2, page_size=2, slots=1), ladder.machine("admission"))
s = run(m, s, act.Prefill((Request(id=1, prompt=(1, 2, 3), params=Params(max_new=2)),)))
more = act.Prefill((Request(id=2, prompt=(4,), params=Params(max_new=2)),))
# docs/actions.md: conditions with the same number are asked together, and any that is found may be given.
seen("reasons of a prefill without slot and page", reasons(m, s, more), {"NO_FREE_SLOT", "OUT_OF_PAGES"})
