"""A kernel that is wrong on four queries, and takes no other number of them."""

import numpy as np


def attention(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, *, scale=1.0):
    queries = int(np.asarray(cu_q_lens)[int(np.asarray(num_seqs)[0])])
    if queries != 4:
        raise ValueError(f"{queries} queries, not 4")
    return np.full(np.asarray(q).shape, 1000.0, np.float32)
