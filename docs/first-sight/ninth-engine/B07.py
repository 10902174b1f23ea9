"""After an interrupt the outputs that had left the device are kept for the next generate.

Ctrl-C comes as the engine has just taken the outputs. By hand: generate([]) goes on and returns
both requests, with max_new tokens each: (1, 0) with 3, (2, 0) with 20.
"""
import signal
import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=16, page_size=4, slots=2, pages_per_seq=8)
setup = Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())
engine = Engine(setup)
host = Host(engine)
take, calls = engine.take_outputs, []


def take_and_press():
    outputs = take()
    calls.append(len(outputs))
    if len(calls) == 1:
        signal.raise_signal(signal.SIGINT)
    return outputs


engine.take_outputs = take_and_press
short = Request(id=1, prompt=(5, 2, 9), params=Params(max_new=3))
long = Request(id=2, prompt=(7, 7), params=Params(max_new=20))
interrupted = False
try:
    host.generate([short, long])
except KeyboardInterrupt:
    interrupted = True
seen = {key: len(output.tokens) for key, output in host.generate([]).items()}
print(interrupted, calls, seen)
sys.exit(not interrupted or seen != {(1, 0): 3, (2, 0): 20})
