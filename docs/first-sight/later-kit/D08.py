"""The bench for kernels that append: no new cell lies in a page that another sequence reads."""
from common import *
import numpy as np
from conformance.kernels.appending import apart
from conformance.kernels.batches import SIZES, Batch, build
sizes = SIZES[0]  # pages of 16 cells
batch = Batch(lens=((1, 33), (20, 33)), shared=(1,))
# By hand: sequence 1 shares the two full pages (33 // 16 = 2) of sequence 0. Its 20 queries write positions 13 to 32,
# so 13 to 31 are new cells in pages that sequence 0 reads: the batch must be tried without sharing.
seen("shared", apart(sizes, batch).shared, ())
# 1 query writes position 32 alone, which is in a page of its own: sharing stays.
alone = Batch(lens=((1, 33), (1, 33)), shared=(1,))
seen("shared, apart", apart(sizes, alone).shared, (1,))
