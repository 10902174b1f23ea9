"""Four requests fit in slots and pages, and one prefill takes two prompts: two are admitted at a time."""
from common import Host, check, engine, req, why

one = engine(16, 4, 4, 3, prefill_seqs=2)
host, got = Host(one), {}
requests = [req(n + 1, (n + 1, n + 2), 4) for n in range(4)]
for request in requests:
    host.submit(request)
check(why(host.admit), None, "admit of four waiting requests, where one prefill takes two")
check([one.id for one in host.state.admitted], [1, 2], "admitted")
check([one.id for one in host.state.waiting], [3, 4], "waiting")
got = host.generate([])
alone = {}
for request in requests:  # each by itself: what it gets cannot depend on the others
    alone |= host.generate([request])
check(got, alone, "outputs")
host.reset()
again = {}
check(why(lambda: again.update(host.generate(requests))), None, "generate of four requests")
check(again, alone, "outputs of generate")
print("right")
