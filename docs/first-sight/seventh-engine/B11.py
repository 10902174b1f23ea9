"""An alarm ends Host.reset after the device was reset: then every method raises StateLost (class Host)."""
import signal
import sys

from impl.engine import Engine, StateLost
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=1, pages_per_seq=4)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
host = Host(engine)


def alarm(number, frame):
    raise TimeoutError


def reset_until_alarm(*given):
    reset(*given)
    signal.raise_signal(signal.SIGALRM)


signal.signal(signal.SIGALRM, alarm)
reset, engine.reset = engine.reset, reset_until_alarm
for name in (1, 2):
    host.submit(Request(id=name, prompt=(5, 6), params=Params(max_new=4)))
assert [one.id for one in host.admit()] == [1]
try:
    host.reset()
except TimeoutError:
    pass
try:
    outputs = host.generate([])
except StateLost:
    host_is_right = [one.id for one in host.state.waiting] == [2]
    engine.reset = reset
    host.reset()
    sys.exit(0 if host_is_right and not host.state.waiting else 1)
print("served", sorted(outputs), "and request 1 is gone without an error")
sys.exit(1)
