"""Refinement of a prefill after which one sequence has finished and keeps its slot (cleanup NONE).

Requests 5 (max_new 1: it finishes in the prefill) and 6 (max_new 2: it goes on), in slots 0 and 1. An
engine that stores 0 as the request of the finished sequence is wrong: its id is then free in the
engine, and Prefill of id 5 is accepted where the specification refuses it (CHOICE_TAKEN), as the
script asks the specification. By hand: agrees only if both requests are stored.
"""
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing here needs a device

import jax
import jax.numpy as jnp

from conformance.exploration.instances import instance
from conformance.refinement.contents import encode, setup_of
from conformance.refinement.transition import agrees
from spec.machines.actions import Prefill, TakeOutputs
from spec.vocabulary import CleanupMode, Geometry, Params, Reason, Request

sizes = Geometry(pages=2, slots=2, page_size=3, pages_per_seq=1)
chosen = instance("scheduling", sizes, CleanupMode.NONE)
setup, machine, before = setup_of(chosen), chosen.machine, chosen.initial()
requests = tuple(Request(id=4 + new, prompt=(1,), params=Params(max_new=new)) for new in (1, 2))
after = machine.effect(before, Prefill(requests))
assert set(after.finished) == {0}, after.finished
taken = machine.effect(after, TakeOutputs())
again = {one.reason for one in machine.refusals(taken, Prefill(requests[:1]))}
assert Reason.CHOICE_TAKEN in again, again

old, right = (jax.tree.map(jnp.asarray, encode(setup, state)) for state in (before, after))
assert right.slots.requests.tolist() == [5, 6]
done, mask = jnp.zeros(3, jnp.int32), jnp.uint32(0)
found = []
for stored in ([5, 6], [0, 6], [5, 0]):
    seen = right._replace(slots=right.slots._replace(requests=jnp.array(stored, jnp.int32)))
    found.append(bool(agrees(setup, old, seen, done, right, mask)))
    print("requests", stored, "refines the specification" if found[-1] else "is a mismatch")
sys.exit(0 if found == [True, False, False] else 1)
