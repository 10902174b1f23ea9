from common import *
from conformance.recordings.answers import Illegal
from conformance.recordings.format import Header, Line
from conformance.recordings.judge import judge
# The header promises every change of `allocated`. Two cells are allocated, and the line shows no `allocated` at all.
g = geometry(); h = Header(geometry=g, limits=default_limits(g), policy="lowest", shows=("allocated",))
for machine in (None, ladder.whole()):
    j = judge(h, machine=machine)
    j.take(Line(act.Reserve(0), None, None, {}))
    try: j.take(Line(act.Allocate(((0, 0), (0, 1))), None, None, {})); said = "legal"
    except Illegal as i: said = i.difference.what
    seen("a promised change is not shown", said, "allocated[0]")
