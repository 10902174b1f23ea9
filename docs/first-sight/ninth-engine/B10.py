"""Stats.active: slots in use, finished ones included; so a request waits for a slot.

Cleanup END, two slots. Requests 1 (3 tokens) and 2 (20 tokens) take both; 3 waits until both have
ended and are freed. By hand: generate returns 3, 20 and 4 tokens.
"""
import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import CleanupMode, Geometry, Params, Refused, Request, default_limits

geometry = Geometry(pages=32, page_size=4, slots=2, pages_per_seq=8)
setup = Setup(
    geometry=geometry,
    limits=default_limits(geometry),
    model=IntegerModel(),
    cleanup=CleanupMode.END,
)
requests = [
    Request(id=1, prompt=(5, 2, 9), params=Params(max_new=3)),
    Request(id=2, prompt=(7, 7), params=Params(max_new=20)),
    Request(id=3, prompt=(1, 1), params=Params(max_new=4)),
]
try:
    outputs = Host(Engine(setup)).generate(requests)
except Refused as error:
    print(error)
    sys.exit(1)
seen = {key: len(output.tokens) for key, output in outputs.items()}
print(seen)
sys.exit(seen != {(1, 0): 3, (2, 0): 20, (3, 0): 4})
