"""One request of 40 choices needs 41 of 64 free pages: a prefill does it, and so does the host."""
import sys
from attrs import evolve
from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, Request, default_limits

geometry = Geometry(pages=128, page_size=16, slots=64, pages_per_seq=4)
limits = evolve(default_limits(geometry), prefill_tokens=32)
host = Host(Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel())))
try:
    outputs = host.generate(
        [Request(id=1, prompt=tuple(range(20)), params=Params(max_new=2), n_generations=40)]
    )
    found = sorted(outputs)
except Refused as error:
    found = str(error)
print(found)
# A full page, and a partial one for each choice: 41 pages. An engine without requests has 128.
sys.exit(found != [(1, choice) for choice in range(40)])
