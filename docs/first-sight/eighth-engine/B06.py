"""Three requests on two slots, and outputs for two: the third waits for a slot and is then served.

README and docs/serving.md, "Waiting": they wait, first come first served; `limits.outputs` may be
as small as the number of slots, and outputs do not depend on limits.
"""

import sys

from impl.engine import Engine
from impl.host import Host, Stalled
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Limits, Params, Request

geometry = Geometry(pages=6, page_size=4, slots=2, pages_per_seq=2)
limits = Limits(
    queue=2, prefill_tokens=8, prefill_seqs=2, round_tokens=2, rounds=4, stops=1, stop_len=1, outputs=2
)
host = Host(Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel())))
try:
    outputs = host.generate([Request(id=n, prompt=(n,), params=Params(max_new=2)) for n in (1, 2, 3)])
except Stalled as error:
    print("stalled:", error)
    sys.exit(1)
lengths = {key: len(output.tokens) for key, output in outputs.items()}
print(lengths)
sys.exit(lengths != {(1, 0): 2, (2, 0): 2, (3, 0): 2})
