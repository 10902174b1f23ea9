"""The list that a caller passes as a batch stays as it is (Engine.allocate reads a Sequence)."""
import sys

import numpy as np

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, ResetMode, default_limits


geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)  # prefill_tokens: 16
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
engine.reserve(0)
engine.assign(0, (1, 2, 3, 4, 5), Params(max_new=4), request=1)
cells = [(0, 0), (0, 1)]
try:
    engine.allocate(cells)
    engine.write(cells)
    same = cells == [(0, 0), (0, 1)]
    cells.append((1, 0))  # slot 1 joins: a batch of 3 of at most 16 entries, (0, 0) and (0, 1) moved on by 2
    engine.reserve(1)
    batch = cells
    batch[0], batch[1] = (0, 2), (0, 3)
    engine.allocate(batch)
except Refused as error:
    print("refused:", error)
    sys.exit(1)
print("the caller's list:", cells)
sys.exit(0 if same and cells == [(0, 2), (0, 3), (1, 0)] else 1)
