"""Temperature 0 takes the first of the largest logits.

The head of the model is all zeros, so every logit is 0 and all 16 tokens tie: token 0 is drawn,
each time, with log-probability -log 16 = -2.7726.
"""
from common import *
import math
from impl.models.llama import Llama

g = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2)
model = Llama(vocabulary=16, layers=1, embed=8, q_heads=2, kv_heads=1, head_dim=4, mlp=8)
weights = model.init(jax.random.key(0))
weights = weights._replace(head=weights.head * 0)
e = Engine(Setup(geometry=g, limits=default_limits(g), model=model, logprobs=True), weights)
(output,) = Host(e).generate([req(1, (1, 2, 3), 3)]).values()
check([round(one, 3) for one in output.logprobs], [-round(math.log(16), 3)] * 3, "log-probabilities")
check(output.tokens, (0, 0, 0), "greedy tokens where all logits are equal")
