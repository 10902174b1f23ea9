"""One drawn token and two drafts are queued: three tokens in the queue."""
from common import *
from spec import stats
m, s = start()
s = run(m, s, act.Prefill((Request(id=1, prompt=(1, 2), params=Params(max_new=6)),)))
seen("queued", stats.NAMED["queued"].of(s), 1)
s = run(m, s, act.Propose(0, (7, 8)))
seen("queued with two drafts", stats.NAMED["queued"].of(s), 3)
