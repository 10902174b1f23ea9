"""A request stays admitted, with its pages reserved, until none of its choices holds a slot."""
from types import SimpleNamespace

from common import *
from spec import stats

one = Request(id=1, prompt=(5, 6), params=Params(max_new=4))  # 6 cells at most: 3 pages
m, s = start()
s = run(m, s, act.Submit(one), act.Admit(), act.Clone(0, None, 1), act.Free(0))
assert s.details[1].request == 1 and s.details[1].choice == 1  # the clone is a choice of it
seen("admitted", stats.NAMED["admitted"].of(s), (1,))
# Two choices of 3 pages each: 6 of the 8 - 3 = 5 pages that are not reserved.
two = Request(id=2, prompt=(7,), params=Params(max_new=5), n_generations=2)
s = run(m, s, act.Submit(two))
seen("the second request", reasons(m, s, act.Admit()), {"OUT_OF_PAGES"})
s = run(m, s, act.Free(1))
seen("when all have left", (stats.NAMED["admitted"].of(s), reasons(m, s, act.Admit())), ((), set()))

from impl.host import HostState, release

held = release(HostState(admitted=(one,)), SimpleNamespace(occupants=frozenset({(1, 1)})))
seen("the host", held.admitted, (one,))
gone = release(HostState(admitted=(one,)), SimpleNamespace(occupants=frozenset({(3, 0)})))
seen("the host, later", gone.admitted, ())
