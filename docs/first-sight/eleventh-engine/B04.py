"""A query that is the first cell of a block of pages must see itself: here in a prompt of one token."""
import sys
import jax
import numpy as np
from impl.attention.reference import ragged_paged_attention
from impl.engine import Engine
from impl.host import Host
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=16, page_size=4, slots=2, pages_per_seq=8)
model = Llama(vocabulary=64, layers=2, embed=16, q_heads=4, kv_heads=2, head_dim=8, mlp=32,
              attention="reference")
weights = model.init(jax.random.key(0))
prompt, right = (3,), []
dense = jax.jit(model.dense_logits)
for _ in range(4):  # without pages or blocks: the meaning of generation; later tokens have no influence
    text = [*prompt, *right]
    logits = np.asarray(dense(weights, np.array(text + [0] * (5 - len(text)), np.int32))[len(text) - 1])
    assert np.sort(logits)[-1] - np.sort(logits)[-2] > 1e-3, "no near tie"
    right.append(int(np.argmax(logits)))
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=model), weights))
(output,) = host.generate([Request(id=1, prompt=prompt, params=Params(max_new=4))]).values()
print(output.tokens, "expected", tuple(right))

# And the default blocks of 512 cells: the query at position 512 sees 513 cells, of which only its own has V = 1.
pool = np.zeros((33, 16, 2, 8), np.float32)  # page 32 begins with position 512
pool[32, 0, 1] = 1
seen = ragged_paged_attention(
    np.zeros((1, 1, 8), np.float32), pool, np.array([513], np.int32),
    np.arange(33, dtype=np.int32)[None], np.array([0, 1], np.int32), 1)
print("mean", float(seen[0, 0, 0]), "expected", 1 / 513)
sys.exit(output.tokens != tuple(right) or abs(float(seen[0, 0, 0]) - 1 / 513) > 1e-6)
