"""A prompt of 4 tokens fits one prefill of at most 8, 4 + 8 = 12 tokens fit a row of 16 (TOO_LONG, STOPS and
NEVER_FITS of docs/actions.md, Submit, do not hold): the request is served, with 8 tokens.
"""

import sys

from attrs import evolve

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
limits = evolve(default_limits(geometry), prefill_tokens=8)
host = Host(Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel())))
try:
    (output,) = host.generate([Request(id=1, prompt=(1, 2, 3, 4), params=Params(max_new=8))]).values()
except Refused as error:
    print(error)
    sys.exit(1)
print(output)
sys.exit(len(output.tokens) != 8)
