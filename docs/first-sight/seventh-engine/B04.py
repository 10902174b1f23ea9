"""A SIGINT that comes during a call reaches its handler when the call has ended, also if the call fails."""
import signal, sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

G = Geometry(pages=16, page_size=4, slots=2, pages_per_seq=8)


class Failing(IntegerModel):
    """The user presses Ctrl-C while the step is compiled, which then fails."""

    def decode(self, *given):
        signal.raise_signal(signal.SIGINT)
        raise MemoryError("out of device memory")


asked_to_stop = []
signal.signal(signal.SIGINT, lambda number, frame: asked_to_stop.append(number))
engine = Engine(Setup(geometry=G, limits=default_limits(G), model=Failing()))
try:
    engine.prefill([Request(id=1, prompt=(5,), params=Params(max_new=3))])
except MemoryError:
    pass
else:
    print("the call did not fail")
right = asked_to_stop == [signal.SIGINT]
print("right" if right else "WRONG", asked_to_stop)
sys.exit(0 if right else 1)
