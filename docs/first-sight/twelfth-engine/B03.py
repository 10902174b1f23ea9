"""Rows of 3 pages, attention in blocks of 2: the last block is half past the end of the row."""
from common import Engine, Geometry, Host, Setup, check, default_limits, req
import jax
import jax.numpy as jnp
from impl.models.llama import Llama

model = Llama(vocabulary=61, layers=1, embed=16, q_heads=4, kv_heads=2, head_dim=8, mlp=24,
              attention="reference", kv_block_pages=2)
weights = model.init(jax.random.key(3))
geometry = Geometry(pages=12, page_size=4, slots=1, pages_per_seq=3)
setup = Setup(geometry=geometry, limits=default_limits(geometry), model=model, logprobs=True)
prompts = {1: (5, 17, 2, 40, 8)}
outputs = Host(Engine(setup, weights)).generate([req(n, prompt, 7) for n, prompt in prompts.items()])
for number, prompt in prompts.items():
    out = outputs[number, 0]
    # The same text from scratch, without pages: logits after each token that was drawn from.
    text = jnp.asarray(prompt + out.tokens, jnp.int32)
    logits = model.dense_logits(weights, text)[len(prompt) - 1 : -1]
    right = jax.nn.log_softmax(logits)[jnp.arange(7), jnp.asarray(out.tokens)]
    far = float(jnp.abs(right - jnp.asarray(out.logprobs)).max())
    check(far < 1e-3, True, f"request {number}: log-probabilities differ by {far:.2g}; within 0.001")
    best = tuple(jnp.argmax(logits, axis=1).tolist())
    check(out.tokens, best, f"request {number}: greedy tokens")
print("right")
