"""A seed is any integer from 0 to 2**31 - 1, and each gives its own draws: 2**24 and 2**24 + 1 are
different seeds. The tokens are those of the exact model for each seed."""
from common import *

SEED_EVEN, SEED_ODD = (29414, 4681, 15262), (684, 21332, 12005)

e = engine(8, 4, 2, 4)
e.prefill([
    req(1, (5, 6, 7), 3, temperature=1.0, seed=2**24),
    req(2, (5, 6, 7), 3, temperature=1.0, seed=2**24 + 1),
])
e.generate()
seen = {o.request: o.tokens for o in e.take_outputs()}
check(seen, {1: SEED_EVEN, 2: SEED_ODD}, "tokens drawn with seeds 2**24 and 2**24 + 1")
