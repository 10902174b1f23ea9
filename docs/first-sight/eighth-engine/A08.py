"""Five known tokens are written, then two drafts, each by a write of its own.

"A write of known tokens commits as part of itself", "`committed` only rises, until the slot is
freed", and "a truncation below it is refused" (docs/rollback.md). Five cells are committed, so
Truncate(0, 4) and Commit(0, 5) are refused with COMMITTED.
"""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Reason, Refused, default_limits

G = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
engine = Engine(Setup(geometry=G, limits=default_limits(G), model=IntegerModel()))
engine.reserve(0)
engine.assign(0, (1, 2, 3, 4, 5), Params(max_new=8), request=1)
cells = [(0, at) for at in range(7)]
engine.allocate(cells[:5])
engine.write(cells[:5])
engine.propose(0, (6, 7))
assert engine.pack() == ((6, 0, 5), (7, 0, 6))
engine.allocate(cells[5:])
engine.write(cells[5:6])
engine.write(cells[6:])


def why(call, *given):
    try:
        call(*given)
    except Refused as error:
        return set(error.reasons)
    return set()


seen = why(engine.commit, 0, 5), why(engine.truncate, 0, 4)
print(seen)
sys.exit(0 if seen == ({Reason.COMMITTED}, {Reason.COMMITTED}) else 1)
