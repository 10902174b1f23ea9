"""A truncation cuts, and adds no draft: a slot without drafts has none after it (docs/actions.md).

Three known tokens, eight allocated cells, of which two are given back. A token can then be
enqueued: nothing was ever proposed. And the cell at 3 has no token, so it cannot be written.
"""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Reason, Refused, default_limits

geometry = Geometry(pages=6, page_size=4, slots=2, pages_per_seq=3)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
engine.reserve(0)
engine.assign(0, (1, 2, 3), Params(max_new=6), request=1)
engine.allocate([(0, position) for position in range(8)])
engine.write([(0, position) for position in range(3)])
engine.truncate(0, 6)
wrong = []
try:
    engine.write([(0, 3)])
    wrong.append("a cell without a token was written")
except Refused as error:
    if Reason.BATCH_UNKNOWN not in error.reasons:
        wrong.append(str(error))
try:
    engine.enqueue(0, 9)
except Refused as error:
    wrong.append(str(error))
print(wrong)
sys.exit(1 if wrong else 0)
