"""A prefill of no request is refused, by the specification and by the engine."""
from common import *
from impl import arguments
from impl.models.integer import IntegerModel
from impl.setup import Setup

m, s = start()
seen("Prefill of nothing", reasons(m, s, act.Prefill(())), {"PREFILL_WIDTH"})
setup = Setup(geometry=geometry(), limits=default_limits(geometry()), model=IntegerModel())
try:
    arguments.check_prefill(setup, [])  # what Engine.prefill asks first
    found = "done"
except Refused as refusal:
    found = {reason.name for reason in refusal.reasons}
seen("Engine.prefill([])", found, {"PREFILL_WIDTH"})
