"""`idle`: whether no request is waiting and no token is queued. Nothing else keeps a server busy."""
from common import *

m, new = start()
seen("new", new.idle, True)
begun = run(m, new, act.Prefill((Request(id=1, prompt=(1, 2), params=Params(max_new=3)),)))
seen("one token queued", begun.idle, False)
purged = run(m, begun, act.Purge(0))
seen("queue after the purge", purged.queue, ())
seen("nothing waits, nothing queued", purged.idle, True)
seen("a slot reserved by hand", run(m, new, act.Reserve()).idle, True)
