"""Drafts of a freed slot must not appear in its next occupant.

Slot 0 gets a prompt and two drafts, and is freed: "The queued and proposed tokens of the slot are
dropped". The next sequence in slot 0 begins with no drafts, so its queued token can be decoded:
request 2 has a prompt of 2 tokens and max_new 3; the prefill draws 1, one round draws the second.
"""
from common import *

e = engine(8, 4, 2, 2)
e.reserve(0)
e.assign(0, (1, 2), Params(max_new=5), request=1)
e.propose(0, (7, 8))
e.free(0)
e.prefill([req(2, (3, 4), 3)])
check(int(e.extract().slots.known[0]), 3, "known tokens after the prefill")
check(why(e.round), None, "the round of a sequence without drafts")
check(int(e.extract().slots.known[0]), 4, "known tokens after the round")
