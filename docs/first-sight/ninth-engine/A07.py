"""`host.reset()` forgets everything (docs/serving.md): an output from before it is not returned after it.

Ctrl-C comes when request 1 has finished and request 2 decodes, as on that page. After the reset
nothing was sent, so there is no output, and id 1 can be used again.
"""
import signal
import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, Request, default_limits

geometry = Geometry(pages=16, page_size=4, slots=2, pages_per_seq=8)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
host = Host(engine)
decode, calls = engine.generate, []


def decode_and_press():
    calls.append("decode")
    if len(calls) == 2:
        signal.raise_signal(signal.SIGINT)
    return decode()


engine.generate = decode_and_press
short = Request(id=1, prompt=(5, 2, 9), params=Params(max_new=4))
long = Request(id=2, prompt=(7, 7), params=Params(max_new=29))
try:
    host.generate([short, long])
    raise AssertionError("no interrupt")
except KeyboardInterrupt:
    host.reset()
try:
    outputs = host.generate([Request(id=1, prompt=(3,), params=Params(max_new=2))])
except Refused as error:
    print("after the reset:", error)
    sys.exit(1)
seen = {key: len(output.tokens) for key, output in outputs.items()}
print(seen)
sys.exit(0 if seen == {(1, 0): 2} else 1)
