"""limits.prefill_tokens is 4: a prompt of 6 tokens can never be prefilled. Specification, and the host of the engine."""
from common import *
g = geometry(pages=8, page_size=2, slots=2, pages_per_seq=4)
m, s = start(g, ladder.machine("admission"), prefill_tokens=4)
long = Request(id=1, prompt=(1, 2, 3, 4, 5, 6), params=Params(max_new=2))
seen("Submit of a prompt wider than a prefill", reasons(m, s, act.Submit(long)), {"NEVER_FITS"})
short = Request(id=2, prompt=(1, 2, 3, 4), params=Params(max_new=2))
seen("Submit of a prompt as wide as a prefill", reasons(m, s, act.Submit(short)), set())

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
host = Host(Engine(Setup(geometry=g, limits=s.limits, model=IntegerModel())))
try:
    host.submit(long)
    answer = "queued"
except Refused as refusal:
    answer = {reason.name for reason in refusal.reasons}
seen("Host.submit of a prompt wider than a prefill", answer, {"NEVER_FITS"})
