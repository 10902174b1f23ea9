"""Two slots, one of them with a context of more than 65536 positions: both take their next cell.

Slot 0 has 65536 cells and slot 1 has none. docs/pages.md: a batch names tokens of any slots in any
order, for each slot exactly the next positions; the plan is sorted by slot, then position. So
(0, 65536), (0, 65537), (1, 0), (1, 1), (1, 2) is legal, with slot_ids 0, 1 and kv_lens 65538, 3.
"""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Limits, Refused, default_limits
from attrs import evolve

LONG = 65536
geometry = Geometry(pages=24, page_size=4096, slots=2, pages_per_seq=17)
limits = evolve(default_limits(geometry), prefill_tokens=LONG)
engine = Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel()))
engine.reserve(0)
engine.reserve(1)
engine.allocate([(0, at) for at in range(LONG)])  # 16 full pages
try:
    plan = engine.allocate([(0, LONG), (0, LONG + 1), (1, 0), (1, 1), (1, 2)])
except Refused as refused:
    print("refused:", refused)
    sys.exit(1)
seen = plan.slot_ids.tolist(), plan.kv_lens.tolist(), plan.cu_q_lens.tolist(), int(plan.num_seqs[0])
print(seen)
sys.exit(seen != ([0, 1], [LONG + 2, 3], [0, 2, 5], 2))
