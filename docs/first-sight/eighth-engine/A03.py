"""Every choice of a request, and every clone, ends at the stop sequences of the request."""
import sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import FinishReason, Geometry, Params, Request, default_limits

g = Geometry(pages=16, page_size=4, slots=3, pages_per_seq=4)
engine = Engine(Setup(geometry=g, limits=default_limits(g), model=IntegerModel()))


def serve(choices, stops):
    params = Params(max_new=6, stops=stops)
    engine.prefill([Request(id=1, prompt=(5, 6, 7), params=params, n_generations=choices)])
    engine.generate()
    return {o.choice: (o.tokens, o.reason) for o in engine.take_outputs()}


free = serve(1, ())[0][0]
stop = next(i for i in range(1, 6) if free[i] not in free[:i])
found = serve(3, ((free[stop],),))
print(free, found)
# greedy choices draw alike, and so all end with the stop token
sys.exit(0 if found == {n: (free[: stop + 1], FinishReason.STOP) for n in range(3)} else 1)
