"""Refinement compares the lengths and flags of unused slots too, on which their next sequence
relies. An engine whose free leaves the old written length behind in the unused slot has not done
what it should, and one that leaves everything as in a new engine has.
"""
import jax.numpy as jnp

from common import *
from conformance.refinement.transition import agrees
from impl.models.integer import IntegerModel
from impl.setup import Setup
from impl.state import initial

g = geometry(pages=2, slots=2, pages_per_seq=1)
setup = Setup(geometry=g, limits=default_limits(g), model=IntegerModel())
new = initial(setup)
status, done = jnp.zeros(3, jnp.int32), jnp.uint32(0)
left = new._replace(slots=new.slots._replace(written=jnp.array([0, 2], jnp.int32)))
found = tuple(bool(agrees(setup, new, after, status, new, done)) for after in (new, left))
seen("whether a new state, and one with a length left in slot 1, agree", found, (True, False))
