"""Two prompts that fit one by one, and not together, in `limits.prefill_tokens`, both waiting."""
import os
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no search for a TPU, which takes a minute
import sys
from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.machines import naive
from spec.vocabulary import Geometry, Params, Refused, Request, default_limits

geometry = Geometry(pages=32, page_size=4, slots=4, pages_per_seq=4)  # max_len 16, also prefill_tokens
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())))
requests = [Request(id=n, prompt=(n + 1,) * 10, params=Params(max_new=3)) for n in range(3)]
right = {(one.id, 0): naive.generate(one.prompt, one.params) for one in requests}
try:
    found = host.generate(requests)
except Refused as error:
    print("generate raises", error, "waiting:", [one.id for one in host.state.waiting])
    sys.exit(1)
sys.exit({key: (one.tokens, one.reason) for key, one in found.items()} != right)
