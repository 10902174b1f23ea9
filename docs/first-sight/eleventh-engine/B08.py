"""Cleanup END: a sequence finishes while another one is unfinished and has no queued token."""
import os
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no search for a TPU, which takes a minute
import sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec import ladder
from spec.machines.actions import Pack, Prefill, Purge
from spec.vocabulary import CleanupMode, Geometry, Params, Request, default_limits

geometry = Geometry(pages=16, page_size=4, slots=3, pages_per_seq=4)
limits = default_limits(geometry)
machine = ladder.machine("scheduling")
long = Request(id=1, prompt=(5, 6, 7), params=Params(max_new=6))
short = Request(id=2, prompt=(8, 9), params=Params(max_new=1))
wrong = False
for leave in (Pack(), Purge(0)):  # the caller takes, or drops, the queued token of the long one
    state = machine.initial(geometry, limits, CleanupMode.END)
    setup = Setup(geometry=geometry, limits=limits, model=IntegerModel(), cleanup=CleanupMode.END)
    engine = Engine(setup)
    for action in (Prefill((long,)), leave, Prefill((short,))):
        state = machine.step(state, action)
    engine.prefill([long])
    engine.pack() if isinstance(leave, Pack) else engine.purge(0)
    engine.prefill([short])
    right = {(one.request, one.choice) for one in state.details if one is not None}
    found = engine.stats().occupants
    print(leave, "in slots:", sorted(found), "right:", sorted(right))
    wrong |= found != right
sys.exit(wrong)
