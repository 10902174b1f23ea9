"""A batch of the bench for kernels as JSON and back, as `--reproduce` gets it.

The scores of a steep batch are 64 times as large, and nothing else differs: by hand, q of the batch
that comes back must be 64 times q of the same batch that is not steep.
"""
import json
import sys

import numpy as np
from attrs import evolve

from conformance.kernels.batches import SIZES, Batch, Needle, build

sizes = SIZES[6]
flat = Batch(
    lens=((1, 17), (3, 20)), seed=5, needles=((1, 2, Needle.OWN),), shared=(1,), repeated=(0,),
    far=True, behind=True,
)
for batch, factor in ((flat, 1), (evolve(flat, steep=True), 64)):
    again = Batch.from_json(json.loads(json.dumps(batch.to_json())))
    found = build(sizes, again).q / build(sizes, flat).q
    print("factor of q:", np.unique(found), "should be", factor)
    if again != batch or set(np.unique(found)) != {factor}:
        sys.exit(1)
