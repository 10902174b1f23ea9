"""Drafts of a slot that is not in the round do not refuse the round.

Slot 2, the last one, has a draft whose queue entry was purged. Request 1 is prefilled in slot 0 and
queues one token. The round packs that token alone; slot 0 has no drafts, so the round is done. It
has 1 token of at most 3: the rest is padding.
"""
from common import *

e = engine(8, 4, 3, 2)
e.reserve(2)
e.assign(2, (1, 2), Params(max_new=5), request=9)
e.propose(2, (7,))
e.purge(2)
e.prefill([req(1, (3, 4), 4)])
check(e.stats().queued, 1, "queued")
check(why(e.round), None, "the round of slot 0")
check(int(e.extract().slots.known[0]), 4, "known tokens of slot 0: 2, one drawn by each")
