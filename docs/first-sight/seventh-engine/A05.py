"""Free gives back the pages of the slot, and changes no other count: then every page is free."""
import sys

import numpy as np

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, ResetMode, default_limits


geometry = Geometry(pages=16, page_size=1, slots=2, pages_per_seq=4)  # rows take 8 pages at most
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
engine.reserve(0)
engine.allocate([(0, 0), (0, 1)])
before = engine.stats()
engine.free(0)
after = engine.stats()
print(before, after, engine.extract().pages.counts)
right = (before.free_pages, before.pages_in_use) == (14, 2)
right &= (after.free_pages, after.pages_in_use) == (16, 0)
sys.exit(0 if right else 1)
