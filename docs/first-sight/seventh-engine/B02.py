"""A handler of SIGINT is called with the number of SIGINT, 2, also if the signal came during a call."""
import signal, sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

G = Geometry(pages=16, page_size=4, slots=2, pages_per_seq=8)

pressed = []


class Pressing(IntegerModel):
    """The user presses Ctrl-C while the step is compiled."""

    def decode(self, *given):
        if not pressed:  # once
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)
        return super().decode(*given)


numbers = []
signal.signal(signal.SIGINT, lambda number, frame: numbers.append(number))
engine = Engine(Setup(geometry=G, limits=default_limits(G), model=Pressing()))
engine.prefill([Request(id=1, prompt=(5,), params=Params(max_new=3))])
right = numbers == [signal.SIGINT]
print("right" if right else "WRONG", numbers)
sys.exit(0 if right else 1)
