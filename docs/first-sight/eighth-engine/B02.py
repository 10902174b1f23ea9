"""A sequence ends "as soon as the generated tokens end with one of these" stop sequences
(docs/actions.md, Params.stops). Token 0 is a stop and is not generated: all 4 tokens come.
"""
import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import FinishReason, Geometry, Params, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=3)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())))
prompt = (5, 6, 7)
(free,) = host.generate([Request(id=1, prompt=prompt, params=Params(max_new=4))]).values()
assert len(free.tokens) == 4 and 0 not in free.tokens
stopping = Params(max_new=4, stops=((0,),))
(output,) = host.generate([Request(id=2, prompt=prompt, params=stopping)]).values()
print(free, output)
sys.exit(output.tokens != free.tokens or output.reason is not FinishReason.LIMIT)
