"""A request whose choices together never fit the pool must be refused at Submit (NEVER_FITS)."""
import sys
from impl.engine import Engine
from impl.host import Host, Stalled
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec import ladder
from spec.machines.actions import Submit
from spec.vocabulary import CleanupMode, Geometry, Params, Refused, Request, default_limits

geometry = Geometry(pages=6, page_size=4, slots=4, pages_per_seq=3)
limits = default_limits(geometry)
machine = ladder.machine("admission")
state = machine.initial(geometry, limits, CleanupMode.INCREMENTAL)
request = Request(id=1, prompt=(5, 6), params=Params(max_new=8), n_generations=4)  # 4 * 3 pages
want = {refusal.reason for refusal in machine.refusals(state, Submit(request))}
host = Host(Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel())))
try:
    host.submit(request)
    got = set()
except Refused as error:
    got = set(error.reasons)
print("refused", got, "expected", want)
if got != want:
    try:
        host.generate([Request(id=2, prompt=(5, 6), params=Params(max_new=2))])
    except Stalled as error:
        print("and then:", error)
assert want
sys.exit(got != want)
