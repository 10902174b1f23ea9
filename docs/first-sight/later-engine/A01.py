"""More than 128 positions of one slot in one batch.

The row has 8 * 32 = 256 positions, and the batch may have 256 entries. Nothing is allocated yet,
so the next positions are 0, 1, 2, ...; the batch names 0 to 129, each once: legal by hand.
130 positions take ceil(130 / 32) = 5 pages. With ranks in 8 bits the rank of position 128 is -128.
"""
from common import *

e = engine(8, 32, 1, 8, prefill_tokens=256)
check(e.reserve(), 0, "the slot")
check(why(e.allocate, [(0, at) for at in range(130)]), None, "allocating positions 0 to 129")
check(int(e.extract().slots.allocated[0]), 130, "allocated cells")
check(e.stats().pages_in_use, 5, "pages in use")
