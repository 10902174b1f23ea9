from common import *
from conformance.recordings.answers import Illegal
from conformance.recordings.format import Header, Line
from conformance.recordings.judge import judge
from conformance.recordings.shrinking import shortest
# One page of one cell. It is taken; a second cell is given though no page is free. The cause is OUT_OF_PAGES, and it
# needs the slot reserved and its first cell allocated: 3 lines of the 4.
g = geometry(pages=1, page_size=1); h = Header(geometry=g, limits=default_limits(g), policy="lowest")
done = lambda a: Line(a, None, None, {})
lines = [done(act.Reserve(0)), done(act.Reserve(1)), done(act.Allocate(((0, 0),))), done(act.Allocate(((0, 1),)))]
least = shortest(h, lines, first=2, machine=None, seconds=5.0)
j = judge(least.header, machine=None)
try:
    for line in least.lines: j.take(line)
except Illegal as i: said = str(i.difference.expected)
seen("the cause of the shortest part", said, "refused: OUT_OF_PAGES")
seen("its lines", least.numbers, (2, 4, 5))
