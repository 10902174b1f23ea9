from common import *
from impl.models.llama import Llama
# At a tiny temperature the drawn token is the greedy one, and its log-probability, which is that
# before temperature, is the same as the greedy one.
g = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2)
m = Llama(vocabulary=64, layers=1, embed=16, q_heads=4, kv_heads=2, head_dim=8, mlp=32)
h = Host(Engine(Setup(geometry=g, limits=default_limits(g), model=m, logprobs=True), m.init(jax.random.key(0))))
out = h.generate([req(1, (3, 30, 5), 1), req(2, (3, 30, 5), 1, temperature=1e-3)])
a, b = out[1, 0], out[2, 0]
check(b.tokens, a.tokens, "token at temperature 0.001")
check(abs(b.logprobs[0] - a.logprobs[0]) < 1e-4, True, f"log-probability {b.logprobs} equals the greedy one {a.logprobs}")
