"""The model always draws token 66000; a request with the stop sequence (66000,) ends after 1 token, by STOP."""
import signal, sys
from impl.engine import Engine, StateLost
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, InvalidInput, Params, Reason, Refused, Request, default_limits

G = Geometry(pages=16, page_size=4, slots=2, pages_per_seq=8)


def end(right, seen):
    print("right" if right else "WRONG", seen)
    sys.exit(0 if right else 1)


import jax
import jax.numpy as jnp

from spec.vocabulary import FinishReason

model = Llama(vocabulary=70000, layers=1, embed=2, q_heads=1, kv_heads=1, head_dim=2, mlp=2)
weights = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0)))
weights = weights._replace(
    embedding=jnp.ones_like(weights.embedding),
    norm=jnp.ones_like(weights.norm),
    head=weights.head.at[:, 66000].set(1.0),
)
host = Host(Engine(Setup(geometry=G, limits=default_limits(G), model=model), weights))
request = Request(id=1, prompt=(5,), params=Params(max_new=6, stops=((66000,),)))
(output,) = host.generate([request]).values()
end(output.tokens == (66000,) and output.reason is FinishReason.STOP, output)
