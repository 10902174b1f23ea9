"""Cells allocated ahead of a write must not shift the attention of what is written.

A model of two layers reads the prompt (3, 30, 5, 7, 11, 2) in two writes of 3 tokens, with all 6
cells allocated before the first. Then token 9 is enqueued, and a round draws the next one. By the
meaning of generation it is the greedy token after (3, 30, 5, 7, 11, 2, 9), with the
log-probability that the model gives without cache and pages (`dense_logits`).
"""
from common import *
import jax.numpy as jnp
from impl.models.llama import Llama

g = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
model = Llama(vocabulary=64, layers=2, embed=16, q_heads=4, kv_heads=2, head_dim=8, mlp=32)
weights = model.init(jax.random.key(0))
e = Engine(Setup(geometry=g, limits=default_limits(g), model=model, logprobs=True), weights)
prompt = (3, 30, 5, 7, 11, 2)
e.reserve(0)
e.assign(0, prompt, Params(max_new=2), request=1)
e.allocate([(0, at) for at in range(6)])
e.write([(0, at) for at in range(3)])
e.write([(0, at) for at in range(3, 6)])
e.enqueue(0, 9)
e.round()
(output,) = e.take_outputs()
right = jax.nn.log_softmax(model.dense_logits(weights, jnp.array((*prompt, 9)))[-1])
check(output.tokens, (9, int(right.argmax())), "tokens")
check(abs(output.logprobs[1] - float(right.max())) < 1e-3, True, "log-probability near that without a cache")
