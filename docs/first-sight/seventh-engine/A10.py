"""A state with a finished sequence is carried on by an engine with cleanup INCREMENTAL.

`Engine.inject` puts an engine into a state of its sizes; free_finished: "Free every finished slot."
"""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import CleanupMode, Geometry, Params, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2)


def made(cleanup):
    limits = default_limits(geometry)
    return Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel(), cleanup=cleanup))


old, new = made(CleanupMode.NONE), made(CleanupMode.INCREMENTAL)
old.prefill([Request(id=1, prompt=(1, 2, 3, 4, 5), params=Params(max_new=1))])  # finishes at once
assert (old.stats().active, old.stats().pages_in_use) == (1, 2)  # NONE keeps slot and pages
new.inject(old.extract())
new.free_finished()
stats = new.stats()
print(stats.active, "slots and", stats.pages_in_use, "pages in use")
sys.exit((stats.active, stats.pages_in_use) != (0, 0))
