"""The drafts of a second proposal take the places of the first ones.

docs/actions.md, Propose: "Draft tokens follow the tokens of a sequence", known and proposed, and are
queued. The prompt has the positions 0 and 1, and the drafts 5 and 6 the positions 2 and 3. So 7,
proposed next, is at position 4, and the drafts are (5, 6, 7).
"""
from common_a import *

ours = engine(Geometry(pages=6, page_size=4, slots=3, pages_per_seq=3))
begin(ours, 0, (1, 2), Params(max_new=6), 1)
ours.apply(act.Propose(0, (5, 6)))
ours.apply(act.Propose(0, (7,)))
seen = ours.observe()
compare({"proposed": (5, 6, 7), "queue": ((5, 0, 2), (6, 0, 3), (7, 0, 4))},
        {"proposed": seen.proposed[0], "queue": seen.queue})
