"""Refinement: a plan that names a live cell for padding is wrong, since whoever writes by it overwrites that cell."""
import os
os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax.numpy as jnp
from common import *
from conformance.refinement.run import Refinement, refine_small
from impl import entries

small = ("lifecycle", Geometry(pages=1, slots=1, page_size=2, pages_per_seq=1), CleanupMode.INCREMENTAL)

def mismatches():
    run = Refinement()
    refine_small(small, run, None)
    return run.tally.mismatches

right = entries.allocate

def padding_in_cell_0(setup, *given):
    """Allocate, but what the plan returns as the destinations of padding is 0 and not INVALID."""
    state, status, result = right(setup, *given)
    width = setup.limits.prefill_tokens  # the destinations are the last numbers of a plan
    last = result[-width:]
    return state, status, result.at[-width:].set(jnp.where(last == INVALID, 0, last))

if __name__ == "__main__":  # exploring starts processes
    entries.allocate = padding_in_cell_0  # the right engine has no mismatch here, with and without the bug
    seen("whether mismatches of the wrong engine are found", mismatches() > 0, True)
