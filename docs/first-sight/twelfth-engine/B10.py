"""Draws follow the softmax of the logits, also among many tokens of small probability."""
import common
from common import check
import jax
import jax.numpy as jnp
import numpy as np
from impl.models import sampler

N, V = 1000, 4096


def draws(logits):
    ints = lambda values: jnp.asarray(values, jnp.int32)
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (N, len(logits)))
    tokens, _ = jax.jit(sampler.draw)(rows, ints(range(N)), ints([0] * N), ints([9] * N), jnp.ones(N))
    return np.asarray(tokens)


# 4096 equal logits: each quarter of the vocabulary gets 250 of 1000 draws (deviation 14).
quarters = np.bincount(draws(np.zeros(V)) // (V // 4), minlength=4)
print("draws by quarter of the vocabulary:", quarters)
check(bool(np.abs(quarters - N / 4).max() < 6 * 14), True, "each quarter has about 250 draws")

# One token of probability 0.9 and 1000 that share 0.1: 100 of 1000 draws are of these (deviation 9.5).
rare = np.log([0.9] + [0.1 / 1000] * 1000)
seen = draws(rare)
print("draws of rare tokens:", int((seen > 0).sum()), "of which in the first half:", int(((seen > 0) & (seen <= 500)).sum()))
check(bool(abs((seen > 0).sum() - 100) < 6 * 9.5), True, "about 100 draws of the rare tokens")
