"""A round is refused if "a slot with a packed token has proposed tokens" (docs/actions.md, Round).

A round takes one token here. It would be the pending one, at position 3; the draft, at position 4,
waits behind it. So the round is refused (PROPOSED), and a loop of rounds does none.
"""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Reason, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=1, pages_per_seq=4)
limits = default_limits(geometry)
assert limits.round_tokens == 1
engine = Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel()))
engine.prefill([Request(id=1, prompt=(5, 6, 7), params=Params(max_new=8))])
engine.propose(0, (9,))
done = engine.generate()
print(done, engine.pack())
sys.exit(done != (0, Reason.PROPOSED))
