"""SIGINT while a call compiles, with a functools.partial as its handler (as asyncio.Runner has): nothing is lost."""
import signal
import sys
from functools import partial

from impl.engine import Engine, StateLost
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

presses = [1]


class Pressed(IntegerModel):
    """Ctrl-C comes while the first call that decodes is compiled."""

    def decode(self, *given):
        if presses:
            presses.pop()
            signal.raise_signal(signal.SIGINT)
        return super().decode(*given)


def stop(_name, number, frame):
    raise KeyboardInterrupt


geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=Pressed())))
signal.signal(signal.SIGINT, partial(stop, "server"))
try:
    host.generate([Request(id=1, prompt=(5, 6), params=Params(max_new=4))])
    print("no interrupt")
    sys.exit(1)
except KeyboardInterrupt:
    pass
try:
    outputs = host.generate([])
except StateLost as lost:
    print(lost)
    sys.exit(1)
sys.exit(0 if {key: len(one.tokens) for key, one in outputs.items()} == {(1, 0): 4} else 1)
