"""A right kernel with `sm_scale`, and with keywords that it ignores, is judged as right.

docs/kernel.md: `scale` or `sm_scale`, whichever the function has.
"""

import sys
import types

import numpy as np

from conformance.kernels import answers
from conformance.kernels.batches import SIZES, Batch, build
from conformance.kernels.kernel_under_test import find
from conformance.numerics import oracle


def attention(*arrays, sm_scale=1.0, **_unused):
    return oracle.ragged_paged_attention(*arrays, scale=sm_scale)


mine = types.ModuleType("mine_d07")
mine.attention = attention
sys.modules["mine_d07"] = mine

sizes = SIZES[0]  # its scale is 0.09, and it has no other option
batch = Batch(lens=((1, 17), (3, 20)))
arrays = build(sizes, batch)
found = find("mine_d07:attention").call(*arrays, options=sizes.options)
ratio = answers.right(sizes, arrays).ratio(found, rows=4)
print(f"the largest error over the bound: {ratio:.3g}, should be 0")
sys.exit(ratio > 1.0)
