"""SIGINT is ignored (as under nohup): Ctrl-C during a call does nothing, and the request gets 3 tokens."""
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


signal.signal(signal.SIGINT, signal.SIG_IGN)
engine = Engine(Setup(geometry=G, limits=default_limits(G), model=IntegerModel()))
prefill = engine.prefill


def press_and_prefill(requests):
    signal.raise_signal(signal.SIGINT)
    return prefill(requests)


engine.prefill = press_and_prefill
try:
    outputs = Host(engine).generate([Request(id=1, prompt=(5,), params=Params(max_new=3))])
except TypeError as error:
    end(False, repr(error))
end([*outputs] == [(1, 0)] and len(outputs[1, 0].tokens) == 3, outputs)
