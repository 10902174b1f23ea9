"""A plan that allocate() returned stays the plan of that batch when another batch is allocated."""
import sys

import numpy as np

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, ResetMode, default_limits


geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
engine.reserve(0)
engine.reserve(1)
first = engine.allocate([(0, 0), (0, 1)])  # page 0: cells 0 and 1
second = engine.allocate([(1, 0), (1, 1), (1, 2)])  # page 1: cells 4, 5, 6
seen = first.destinations[:2].tolist(), int(first.slot_ids[0]), int(first.kv_lens[0])
later = second.destinations[:3].tolist(), int(second.slot_ids[0]), int(second.kv_lens[0])
print("first", seen, "second", later)
sys.exit(0 if seen == ([0, 1], 0, 2) and later == ([4, 5, 6], 1, 3) else 1)
