"""An edge is not checked where an action leaves the state seen from below as it was.

Machine.climb: for each edge, abstract(step(s, a)) == fold(lower.step, abstract(s), lower(s, a)), and
LadderBroken otherwise. The machine here has a Write that stops at the first padding, so a batch that
begins with padding writes nothing. Seen from cache the action is a Write of position 0, after which
one cell is kept; seen through the row there is none. So the edge "pages to cache" is broken. Without
padding the machine is right, and climbs.
"""

from itertools import takewhile

from attrs import evolve
from common_c import judge

from spec import ladder
from spec.machines import cache, naive, pages
from spec.machines.actions import Allocate, Append, Reserve, Write
from spec.rung import LadderBroken, Machine
from spec.vocabulary import Geometry, default_limits

right = pages.RUNG.rules[Write]


def write(machine, state, action, taken):
    batch = tuple(takewhile(lambda entry: entry is not None, action.batch))
    return right.effect(machine, state, evolve(action, batch=batch), taken)


rung = evolve(pages.RUNG, rules={**pages.RUNG.rules, Write: evolve(right, effect=write)})
machine = Machine((rung,), (naive.RUNG, cache.RUNG, rung))
geometry = Geometry(pages=2, page_size=2, slots=1, pages_per_seq=2)


def climbs(batch):
    state = machine.initial(geometry, default_limits(geometry))
    for action in (Reserve(0), Append(0, (5, 6)), Allocate(((0, 0),)), Write(batch)):
        try:
            state = machine.climb(state, action)
        except LadderBroken:
            return f"broken at {type(action).__name__}"
    return "holds"


judge(
    ("a batch without padding", "holds", climbs(((0, 0),))),
    ("a batch that begins with padding", "broken at Write", climbs((None, (0, 0)))),
)
