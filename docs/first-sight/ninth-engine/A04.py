"""A request gets the same tokens whatever is served beside it, also where it has the last page of the pool."""
import sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=6, page_size=4, slots=3, pages_per_seq=8)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
long = Request(id=1, prompt=tuple(range(10, 28)), params=Params(max_new=3))


def serve(beside):
    if beside:
        engine.prefill([Request(id=2, prompt=(1,), params=Params(max_new=2))])  # page 0
    engine.prefill([long])  # 18 tokens: five pages, beside another the pages 1 to 5
    if beside:
        engine.free(0)
        held = [pool[5] for pool in engine.extract().pages.cache]
        engine.prefill([Request(id=3, prompt=(7, 8, 9), params=Params(max_new=2))])  # page 0 again
        kept = [pool[5] for pool in engine.extract().pages.cache]
        print(all((one == two)[:2].all() for one, two in zip(held, kept)))
    engine.generate()
    outputs = {output.request: output.tokens for output in engine.take_outputs()}
    engine.reset()
    return outputs[1]


alone, together = serve(False), serve(True)
print(alone, together)
sys.exit(alone != together)
