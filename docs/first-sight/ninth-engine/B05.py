"""docs/actions.md, Enqueue, condition 3: SLOT_FINISHED, the sequence in the slot has finished. With cleanup NONE the
sequence that its first token has stopped keeps its slot, and leaves exactly one output.
"""

import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import CleanupMode, Geometry, Params, Reason, Refused, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
setup = Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel(), cleanup=CleanupMode.NONE)
first = Engine(setup)
first.prefill([Request(id=1, prompt=(1, 2, 3), params=Params(max_new=1))])
(stop,) = first.take_outputs()[0].tokens

engine = Engine(setup)
engine.prefill([Request(id=1, prompt=(1, 2, 3), params=Params(max_new=6, stops=((stop,),)))])
found = None
try:
    engine.enqueue(0, 7)
except Refused as error:
    found = error.reasons
engine.generate()
outputs = [(output.tokens, output.reason.name) for output in engine.take_outputs()]
print(found, outputs)
sys.exit(found is None or set(found) != {Reason.SLOT_FINISHED} or outputs != [((stop,), "STOP")])
