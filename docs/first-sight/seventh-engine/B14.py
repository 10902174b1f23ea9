"""A model that refuses a batch while the call is compiled: nothing was donated, so nothing is lost (StateLost)."""
import sys

from impl.engine import Engine, StateLost
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, InvalidInput, Params, Request, default_limits

WIDEST = 4


class Narrow(IntegerModel):
    """Its kernel takes no more than WIDEST tokens: rounds of 2, and no prefill of 16."""

    def decode(self, params, cache, plan, tokens, positions):
        if tokens.shape[0] > WIDEST:
            raise InvalidInput("kernel", seen=tokens.shape, allowed="4 tokens", remedy="Send less.")
        return super().decode(params, cache, plan, tokens, positions)


geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=Narrow()))
host = Host(engine)
engine.reserve(0)
engine.assign(0, (7,), Params(max_new=3), request=9)
host.submit(Request(id=1, prompt=(5, 6), params=Params(max_new=4)))
try:
    host.admit()
    sys.exit(1)
except InvalidInput as error:
    assert error.name == "kernel"
try:
    stats = host.stats()
except StateLost as lost:
    print(lost)
    sys.exit(1)
right = stats.active == 1 and stats.occupants == {(9, 0)}
sys.exit(0 if right and [one.id for one in host.state.waiting] == [1] else 1)
