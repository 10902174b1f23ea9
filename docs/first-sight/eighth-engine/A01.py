"""A prompt of 9 tokens in pages of 4: 3 pages, and a copy of the last for each of 2 more choices."""
import sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

g = Geometry(pages=16, page_size=4, slots=3, pages_per_seq=4)
engine = Engine(Setup(geometry=g, limits=default_limits(g), model=IntegerModel()))


def serve(choices):
    engine.prefill([Request(id=1, prompt=(5, 6, 7, 8, 9, 10, 11, 12, 13), params=Params(max_new=5), n_generations=choices)])
    pages = engine.stats().pages_in_use
    engine.generate()
    return pages, [o.tokens for o in engine.take_outputs()]


one, three = serve(1), serve(3)
print(one, three)
# 2 full pages are shared, 3 partial ones are private; greedy choices draw alike.
right = one[0] == 3 and three[0] == 5 and three[1] == one[1] * 3
sys.exit(0 if right else 1)
