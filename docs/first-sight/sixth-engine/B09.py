"""`Engine.inject` of a state whose arrays the caller keeps.

Docstring: "Put the engine into a state; the arrays are copied, so that the caller keeps its own."
A snapshot of one prefilled sequence is held as jax arrays. It is injected, the engine decodes to
the end, and the same snapshot is injected again. Expected: both runs give the same output, and the
snapshot is as it was. With the bug the engine's next call donates the caller's arrays: the
snapshot is deleted (or overwritten).
"""
import jax, numpy as np
from common_b import *

made = engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2))
made.prefill([Request(id=1, prompt=(1, 2, 3), params=Params(max_new=4))])
held = made.extract()
kept = jax.tree.map(np.array, held)
snapshot = jax.tree.map(jax.numpy.array, held)

def run(state):
    made.inject(state)
    made.generate()
    return [len(one.tokens) for one in made.take_outputs()]

first, second = attempt(run, snapshot), attempt(run, snapshot)
same = attempt(lambda: all(jax.tree.leaves(jax.tree.map(
    lambda a, b: bool((np.asarray(a) == b).all()), snapshot, kept))))
verdict(([4], [4], True), (first, second, same))
