"""The statistic `admitted` lists the requests that were admitted last first.

spec.stats, `admitted`: "the admitted requests that still hold a slot, by id, in order of
admission"; docs/adapters.md compares the statistics with those of `spec.stats.NAMED`. Request 1 is
admitted, then request 2, and both still decode: 1, 2. Two requests of one admission, 3 and 4, follow
in order of arrival.
"""

from common_c import engine, go, ladder, report, start

from spec.machines.actions import Admit, Submit
from spec.stats import NAMED
from spec.vocabulary import Geometry, Params, Request

geometry = Geometry(pages=8, page_size=4, slots=4, pages_per_seq=2)
one, two, three, four = (
    Submit(Request(id=id, prompt=(id, 2), params=Params(max_new=6))) for id in (1, 2, 3, 4)
)
actions = (one, Admit(), two, Admit(), three, four, Admit())
machine = ladder.machine("admission", "rollback")
state = go(machine, start(machine, geometry), *actions)
made = engine(geometry)
for action in actions:
    made.apply(action)
report(
    ("admitted in the specification", (1, 2, 3, 4), NAMED["admitted"].of(state)),
    ("admitted in the engine", [1, 2, 3, 4], made.statistics()["admitted"]),
)
