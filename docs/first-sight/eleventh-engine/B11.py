"""A Llama with 1,024 tokens whose logits are all equal: a draw gives each of them alike."""
import os
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no search for a TPU, which takes a minute
import sys
import jax, jax.numpy as jnp
from impl.engine import Engine
from impl.host import Host
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

model = Llama(vocabulary=1024, layers=1, embed=4, q_heads=1, kv_heads=1, head_dim=4, mlp=4, attention="reference")
weights = model.init(jax.random.key(0))
weights = weights._replace(head=jnp.zeros_like(weights.head))
geometry = Geometry(pages=64, page_size=8, slots=4, pages_per_seq=8)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=model), weights))
one = Request(id=1, prompt=(1, 2, 3), params=Params(max_new=32, temperature=1.0, seed=3), n_generations=4)
tokens = [token for output in host.generate([one]).values() for token in output.tokens]
# 128 draws, each uniform over 1,024 tokens, so half of them are of the upper half.
upper = sum(token >= 512 for token in tokens)
print(len(tokens), "draws,", upper, "of the upper half,", len(set(tokens)), "different")
sys.exit(not 30 <= upper <= 98)  # 64 expected, standard deviation 5.7: six of them
