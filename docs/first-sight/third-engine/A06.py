"""Commit makes the drafts below `length` known; the others stay proposed (docs/actions.md, "Commit":
of the drafts 4 and 7, 7 is still proposed). So a known token is refused until they are committed or
cut, and a second commit makes them known.
"""
from common import check, engine, why
from spec.vocabulary import Params

e = engine(8, 4, 2, 4)
e.reserve(0)
e.assign(0, (1, 2, 3), Params(max_new=9), request=1)
cells = [(0, position) for position in range(6)]
e.allocate(cells[:3])
e.write(cells[:3])
e.propose(0, (4, 7, 9))
check(e.pack()[:2], ((4, 0, 3), (7, 0, 4)), "the first drafts packed")
e.purge(0)
e.allocate(cells[3:])
e.write(cells[3:])
e.commit(0, 4)  # 4 is accepted; 7 and 9 stay proposed
check(why(e.enqueue, 0, 8), "PROPOSED", "a known token after two drafts")
e.commit(0, 6)
check(why(e.enqueue, 0, 8), None, "a known token after all drafts are accepted")
check(e.pack(), ((8, 0, 6),), "the position of that token: six are known before it")
