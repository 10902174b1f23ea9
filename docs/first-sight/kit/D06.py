from common import *
import jax.numpy as jnp
from conformance.refinement.transition import agrees
from impl.models.integer import IntegerModel
from impl.setup import Setup
from impl.state import initial
# Refused as SLOT_UNUSED, as it may be, but a byte of a free page was written: a refused action changes nothing.
g = geometry(); setup = Setup(geometry=g, limits=default_limits(g), model=IntegerModel()); s = initial(setup)
pool = s.pages.cache[0].at[3, 0, 0, 0].set(9)
touched = s._replace(pages=s.pages._replace(cache=(pool, *s.pages.cache[1:])))
status = jnp.array([2, 0, 0], jnp.int32); mask = jnp.uint32(1 << 2)
seen("refused, untouched", bool(agrees(setup, s, s, status, s, mask)), True)
seen("refused, a dead cell written", bool(agrees(setup, s, touched, status, s, mask)), False)
