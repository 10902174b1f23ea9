"""A Llama in bfloat16: the two largest logits differ by less than bfloat16 can tell."""
import os
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no search for a TPU, which takes a minute
import math, sys
import jax, jax.numpy as jnp
from impl.engine import Engine
from impl.host import Host
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

wrong = False
for dtype in ("bfloat16",):
    model = Llama(vocabulary=4, layers=1, embed=2, q_heads=1, kv_heads=1, head_dim=2, mlp=2,
                  dtype=dtype, attention="reference")
    weights = model.init(jax.random.key(0))
    zeros = jax.tree.map(jnp.zeros_like, weights.layers[0])  # the layer adds nothing to x
    layer = zeros._replace(attention_norm=weights.layers[0].attention_norm, mlp_norm=weights.layers[0].mlp_norm)
    # Every token is embedded as (1, 1), of which the norm is (1, 1) but for 0.0005 %: so the logits
    # are the sums of the columns: 8, 8 + 2**-8, -8, -8. All are exact in the dtype, the sum is not.
    head = jnp.array([[8, 8, -8, -8], [0, 2**-8, 0, 0]], dtype)
    weights = weights._replace(embedding=jnp.ones((4, 2), dtype), layers=(layer,), head=head)
    geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
    setup = Setup(geometry=geometry, limits=default_limits(geometry), model=model, logprobs=True)
    (output,) = Host(Engine(setup, weights)).generate([Request(id=1, prompt=(2,), params=Params(max_new=3))]).values()
    logprob = -math.log1p(math.exp(-(2**-8)))  # of the second logit; the last two weigh 1e-7
    print(dtype, output.tokens, output.logprobs[0], "right:", (1, 1, 1), logprob)
    wrong |= output.tokens != (1, 1, 1) or abs(output.logprobs[0] - logprob) > 1e-5
sys.exit(wrong)
