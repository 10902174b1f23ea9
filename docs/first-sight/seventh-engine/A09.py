"""Ids that differ by 65536, as of a server that has counted its requests for an hour.

docs/actions.md: CHOICE_TAKEN is for a (request, choice) that is live or whose output is not taken.
(7, 0) is live; (65543, 0) is another pair, and (65543, 1) too.
"""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=4, pages_per_seq=2)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
params = Params(max_new=3)
engine.prefill([Request(id=7, prompt=(1, 2, 3), params=params, n_generations=2)])  # slots 0 and 1
engine.prefill([Request(id=7 + 65536, prompt=(4, 5, 6), params=params)])  # slot 2
try:
    child = engine.clone(2, choice=1)  # (65543, 1): nothing has that name
except Refused as refused:
    print("refused:", refused)
    sys.exit(1)
print("cloned into", child)
sys.exit(child != 3)
