"""A purge fills the gap in the queue with its youngest tokens, so that the others do not stay in order.

docs/actions.md: the queue is "the tokens that wait to be written, oldest first"; Purge says "The
queued tokens of a slot leave the queue", and nothing of the others, whose order therefore stays.
Slots 0, 1, 2 and 3 queue the tokens 20, 21, 22, 23 in this order, each at position 2, and slot 0 is
purged: 21, 22, 23 are left in this order.
"""
from common_a import *

ours = engine(Geometry(pages=8, page_size=4, slots=4, pages_per_seq=2))
for slot in range(4):
    begin(ours, slot, (1, 2), Params(max_new=4), slot)
for slot in range(4):
    ours.apply(act.Enqueue(slot, 20 + slot))
ours.apply(act.Purge(0))
compare(((21, 1, 2), (22, 2, 2), (23, 3, 2)), ours.observe().queue)
