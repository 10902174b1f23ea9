"""The second admit must leave room for what the first one admitted (worst-case admission)."""
import sys
from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Reason, Refused, Request, default_limits

geometry = Geometry(pages=4, page_size=4, slots=2, pages_per_seq=4)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())))
for number in (1, 2):  # 4 + 8 tokens: 3 pages in the worst case, so that only one fits in 4
    host.submit(Request(id=number, prompt=(1, 2, 3, 4), params=Params(max_new=8)))
first = [request.id for request in host.admit()]
try:
    second = [request.id for request in host.admit()]
except Refused as error:
    second = set(error.reasons)
done, why = host.generate_rounds()
print(first, second, done, why)
# 3 of 4 pages are reserved, and 3 are wanted. Request 1 then needs 7 rounds, which nothing stops.
sys.exit((first, second) != ([1], {Reason.OUT_OF_PAGES}) or why is Reason.OUT_OF_PAGES)
