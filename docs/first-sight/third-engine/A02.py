"""Allocate raises `allocated` of a slot by the number of its positions, whatever the width of the
batch. Here a batch without padding has eight positions of one slot: its plan has one sequence, and
position 0 is then no longer the next one.
"""
from common import check, engine, why

e = engine(8, 4, 2, 2)  # max_len 8, and 8 entries in a batch
e.reserve(0)
plan = e.allocate([(0, position) for position in range(7)])
check(int(plan.num_seqs[0]), 1, "sequences of a batch of seven")
e.free(0)
e.reserve(0)
plan = e.allocate([(0, position) for position in range(8)])
check(int(plan.num_seqs[0]), 1, "sequences of a batch of eight")
check(plan.slot_ids.tolist()[:1], [0], "its slot")
check(why(e.allocate, [(0, 0)]), "BATCH_POSITIONS", "the same position again")
