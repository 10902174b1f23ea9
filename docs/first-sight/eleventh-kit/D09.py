"""A right kernel with float32 queries and a bfloat16 pool may narrow its weights to bfloat16."""
import ml_dtypes, numpy as np
from common import *
from conformance.kernels import answers
from conformance.kernels.batches import SIZES, Batch, build

sizes = next(one for one in SIZES if one.kinds == ("float32", "bfloat16"))
batch = Batch(lens=((1, 100), (3, 40)), seed=5)
arrays = build(sizes, batch)
heads, kv_heads, width = sizes.heads
out = np.zeros_like(arrays.q, dtype=np.float32)
for row, (queries, length) in enumerate(batch.lens):
    cells = np.stack([arrays.kv_pages[arrays.page_indices[row, p // sizes.page_size], p % sizes.page_size] for p in range(length)])
    for index in range(queries):
        token, last = arrays.cu_q_lens[row] + index, length - queries + index + 1
        for head in range(heads):
            own = head // (heads // kv_heads)
            k, v = cells[:last, 2 * own].astype(np.float64), cells[:last, 2 * own + 1].astype(np.float64)
            scores = sizes.options["scale"] * (k @ arrays.q[token, head].astype(np.float64))
            weights = np.exp(scores - scores.max())
            narrow = weights.astype(ml_dtypes.bfloat16).astype(np.float64)  # what the matrix unit takes
            out[token, head] = (narrow @ v) / weights.sum()
ratio = answers.right(sizes, arrays).ratio(out, rows=int(arrays.cu_q_lens[len(batch.lens)]))
print("largest error over bound:", ratio)
seen("within the bound", ratio <= 1.0, True)
