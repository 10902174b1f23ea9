"""A float16 Llama with a large activation.

Docstring of Llama: "norms, rotation and attention compute in float32", whatever the dtype. Every
token embeds as (300, 0), which float16 holds. Its mean square is 45000, so its norm is
(sqrt 2, 0), and the logits are sqrt 2 * (0, 1, 0): greedy draws token 1 each time. Expected 1, 1, 1.
With the bug 300 * 300 = 90000 is infinite in float16 (its largest number is 65504), the norm is 0,
all logits are 0, and greedy draws the first of them, 0.
"""
from common_b import *
from small import llama

model, weights = llama([(300, 0)] * 3, [(0, 1, 0), (0, 0, 0)], "float16")
made = engine(Geometry(pages=8, page_size=4, slots=1, pages_per_seq=2), model=model, weights=weights)
made.prefill([Request(id=1, prompt=(2, 2), params=Params(max_new=3))])
made.generate()
verdict([(1, 1, 1)], [output.tokens for output in made.take_outputs()])
