"""A request that exactly fills a row (prompt + max_new == max_len) must get all its tokens."""
import sys
from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.machines import naive
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())))
prompt = (5, 6, 7)
params = Params(max_new=geometry.max_len - len(prompt))
(output,) = host.generate([Request(id=1, prompt=prompt, params=params)]).values()
tokens, reason = naive.generate(prompt, params, 0)
print(output.tokens, output.reason, "expected", tokens, reason)
sys.exit((output.tokens, output.reason) != (tokens, reason))
