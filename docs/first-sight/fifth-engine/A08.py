"""The cells of drafts are computed from token 0, and not from the draft.

docs/actions.md, Write: "K and V of the next positions are stored in their cells", those of proposed
tokens too. docs/cache.md: a cell is determined by the tokens up to and including its own, and
sequences with one prefix could exchange their cells. Slot 0 has the prompt (1, 2) and the drafts 3
and 4, slot 1 has the prompt (1, 2, 3, 4): so their four cells are equal.
"""
from common_a import *

ours = engine(Geometry(pages=6, page_size=4, slots=2, pages_per_seq=2))
begin(ours, 1, (1, 2, 3, 4), Params(max_new=3), 2)
begin(ours, 0, (1, 2), Params(max_new=5), 1)
ours.apply(act.Propose(0, (3, 4)))
ours.apply(act.Pack())
ours.apply(act.Allocate(span(0, 2, 4)))
ours.apply(act.Write(span(0, 2, 4)))
compare(cells(ours, 1, 4), cells(ours, 0, 4))
