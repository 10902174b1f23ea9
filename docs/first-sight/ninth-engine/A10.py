"""An output stays after its slot is freed, until it is taken (Free: "An output that it left stays").

Cleanup NONE: two requests end with their first token and keep their slots; the caller frees both.
"""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import CleanupMode, Geometry, Params, Request, default_limits

geometry = Geometry(pages=6, page_size=4, slots=2, pages_per_seq=3)
limits = default_limits(geometry)
engine = Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel(), cleanup=CleanupMode.NONE))
params = Params(max_new=1)
engine.prefill([Request(id=7, prompt=(1, 2), params=params), Request(id=8, prompt=(3,), params=params)])
engine.free(0)
engine.free(1)
names = [(output.request, output.choice, len(output.tokens)) for output in engine.take_outputs()]
print(names)
sys.exit(0 if names == [(7, 0, 1), (8, 0, 1)] else 1)
