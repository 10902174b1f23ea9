"""A prefill is refused if "the outputs have no room for one of each choice, since each may finish"
(docs/actions.md, Prefill). 3 outputs, 2 not taken, 2 choices: 4 > 3, OUTPUTS_FULL.
"""
import sys

from attrs import evolve

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Reason, Refused, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2)
limits = evolve(default_limits(geometry), outputs=3)
engine = Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel()))
one = Params(max_new=1)
engine.prefill([Request(id=1, prompt=(5,), params=one), Request(id=2, prompt=(6,), params=one)])
try:
    engine.prefill([Request(id=3, prompt=(7,), params=one, n_generations=2)])
except Refused as error:
    print(error)
    sys.exit(Reason.OUTPUTS_FULL not in error.reasons)
print("accepted:", engine.take_outputs())  # the second choice of 3 is not among them
sys.exit(1)
