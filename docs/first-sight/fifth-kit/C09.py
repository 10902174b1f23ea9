"""The admitted requests are listed by id and not in order of admission.

spec.stats, `admitted`: "the admitted requests that still hold a slot, by id, in order of admission";
State says that admitted is in order too. Request 7 is submitted and admitted, and then request 3;
both go on. So the statistic is (7, 3) in the specification and in the engine. The names are the ids:
the list is not sorted by them.
"""

from common_c import engine_of, go, judge

from spec import ladder
from spec.machines.actions import Admit, Submit
from spec.stats import NAMED
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=4, pages_per_seq=3)
params = Params(max_new=6)
seven, three = (Request(id=name, prompt=(1, 2), params=params) for name in (7, 3))
steps = (Submit(seven), Admit(), Submit(three), Admit())
machine = ladder.machine("admission", "rollback")
state = go(machine, machine.initial(geometry, default_limits(geometry)), *steps)
engine = engine_of(geometry)
for step in steps:
    engine.apply(step)
judge(
    ("admitted in the specification", (7, 3), NAMED["admitted"].of(state)),
    ("admitted in the engine", (7, 3), tuple(engine.statistics()["admitted"])),
)
