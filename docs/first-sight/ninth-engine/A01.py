"""Every slot is in use: a caller that asks for any slot is told NO_FREE_SLOT, which is a lack of capacity."""
import sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Reason, Refused, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
assert (engine.reserve(), engine.reserve()) == (0, 1)
engine.assign(0, (1, 2), Params(max_new=2), request=1)
found = []
for call in (lambda: engine.reserve(), lambda: engine.clone(0, choice=1)):
    try:
        call()
    except Refused as error:
        found.append(set(error.reasons))
print(found)
# docs/actions.md, Reserve and Clone: NO_FREE_SLOT if the slot is None and every slot is in use.
sys.exit(found != [{Reason.NO_FREE_SLOT}] * 2)
