"""A refused truncation changes nothing: no page becomes free."""
import sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Reason, Refused, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
for slot in (0, 1):
    batch = [(slot, position) for position in range(6)]
    engine.reserve(slot)
    engine.assign(slot, (1, 2, 3, 4, 5, 6), Params(max_new=4), request=slot)
    engine.allocate(batch)
    engine.write(batch)
before = engine.stats().pages_in_use
try:
    engine.truncate(0, 2)  # six cells are committed
except Refused as error:
    assert error.reasons == {Reason.COMMITTED}
after = engine.stats().pages_in_use
taken = engine.allocate([(0, 6), (0, 7), (0, 8)]).page_indices[0].tolist()[:3]
print(before, after, taken)
# Six cells in pages of four are two pages for each slot: 0, 1 and 2, 3. The next page is page 4.
sys.exit((before, after, taken) != (4, 4, [0, 1, 4]))
