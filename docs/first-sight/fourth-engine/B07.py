"""With a window the reference attention leaves out blocks that only earlier queries of a block see.

`ragged_paged_attention`: query i of n of a sequence of length L is at L - n + i, and "with a sliding
window w" sees "only those above its own minus w". Of 4 queries and 8 cells with a window of 4, the
query at position 4 sees 1 to 4, that at 7 sees 4 to 7. All scores are 0, so each answer is the mean
of V; V of cell j is j, so the answers are 2.5, 3.5, 4.5 and 5.5, whatever the blocks are.
"""

import jax.numpy as jnp
import numpy as np

from common_b import verdict
from impl.attention.reference import ragged_paged_attention

cells = jnp.arange(8, dtype=jnp.float32).reshape(4, 2)  # pages of two cells
pool = jnp.stack([jnp.zeros((4, 2)), cells], axis=2)[..., None]
out = ragged_paged_attention(
    jnp.zeros((4, 1, 1)),
    pool,
    jnp.array([8]),
    jnp.array([[0, 1, 2, 3]]),
    jnp.array([0, 4]),
    1,
    sliding_window=4,
    kv_block_pages=1,
)
verdict([2.5, 3.5, 4.5, 5.5], np.round(np.asarray(out).ravel(), 4).tolist())
