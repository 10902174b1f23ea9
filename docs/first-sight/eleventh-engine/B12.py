"""Ctrl-C comes during a call, is caught, and the program goes on; then Ctrl-C comes again."""
import os
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no search for a TPU, which takes a minute
import signal, sys
from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.machines import naive
from spec.vocabulary import Geometry, Params, Request, default_limits

signal.signal(signal.SIGINT, signal.default_int_handler)
geometry = Geometry(pages=16, page_size=4, slots=3, pages_per_seq=4)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
host, prefill = Host(engine), engine.prefill


def pressed(requests):  # called by the host while it holds interrupts
    signal.raise_signal(signal.SIGINT)
    prefill(requests)


one = Request(id=1, prompt=(4, 4), params=Params(max_new=3))
engine.prefill = pressed
try:
    host.generate([one])
    sys.exit("Ctrl-C was not raised")
except KeyboardInterrupt:
    engine.prefill = prefill
(output,) = host.generate([]).values()
assert (output.tokens, output.reason) == naive.generate(one.prompt, one.params)
try:
    signal.raise_signal(signal.SIGINT)
    host.generate([one])
except KeyboardInterrupt:
    sys.exit(0)
print("the second Ctrl-C was swallowed; the handler is", signal.getsignal(signal.SIGINT))
sys.exit(1)
