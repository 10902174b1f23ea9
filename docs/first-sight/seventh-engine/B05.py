"""An exception from the handler of another signal leaves host and engine apart: every method raises StateLost until reset."""
import signal, sys
from impl.engine import Engine, StateLost
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.models.llama import Llama
from impl.setup import Setup
from spec.vocabulary import Geometry, InvalidInput, Params, Reason, Refused, Request, default_limits

G = Geometry(pages=16, page_size=4, slots=2, pages_per_seq=8)


def end(right, seen):
    print("right" if right else "WRONG", seen)
    sys.exit(0 if right else 1)


def too_late(number, frame):
    raise TimeoutError("the deadline of this request")


signal.signal(signal.SIGALRM, too_late)
engine = Engine(Setup(geometry=G, limits=default_limits(G), model=IntegerModel()))
prefill, host = engine.prefill, Host(engine)


def prefill_until_alarm(requests):
    prefill(requests)
    engine.prefill = prefill
    signal.raise_signal(signal.SIGALRM)


engine.prefill = prefill_until_alarm
try:
    host.generate([Request(id=1, prompt=(5,), params=Params(max_new=3))])
except TimeoutError:
    pass
else:
    end(False, "no alarm")
try:
    outputs = host.generate([])
except StateLost as error:
    host.reset()
    end(not host.state.waiting, error)
except Refused as error:
    end(False, error)
except Exception as error:
    end(False, repr(error))
end(False, outputs)
