"""Rejected drafts are cut off: tokens that are cut off leave the queue (docs/rollback.md)."""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import CleanupMode, Geometry, Params, Reason, Refused, Request, default_limits


def setup(pages, slots, cleanup=CleanupMode.INCREMENTAL):
    geometry = Geometry(pages=pages, page_size=4, slots=slots, pages_per_seq=2)
    return Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel(), cleanup=cleanup)


def why(call, *args, **named):
    """The reasons for which a call is refused; empty if it is done."""
    try:
        call(*args, **named)
    except Refused as error:
        return set(error.reasons)
    return set()


def request(id, prompt, max_new):
    return Request(id=id, prompt=prompt, params=Params(max_new=max_new))


def judge(**pairs):
    """Each pair: what was seen, and what the specification says."""
    wrong = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    for name, (seen, right) in wrong.items():
        print(f"{name}: {seen}, should be {right}")
    sys.exit(1 if wrong else 0)


engine = Engine(setup(pages=4, slots=2))
engine.reserve(0)
engine.assign(0, (5, 6, 7), Params(max_new=5), request=1)
cells = [(0, 0), (0, 1), (0, 2)]
engine.allocate(cells)
engine.write(cells)
engine.propose(0, (8, 9))  # queued at positions 3 and 4
engine.allocate([(0, 3), (0, 4)])
engine.truncate(0, 3)  # all three known tokens are written: both drafts go
queued = engine.stats().queued
engine.enqueue(0, 4)
judge(
    queued=(queued, 0),
    packed=(engine.pack(), ((4, 0, 3),)),
)
