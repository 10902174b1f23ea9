"""`Host.generate` given one id twice in its list.

Docstring of generate: "All requests are checked before any is queued: raises Refused if one can
never run or its id is taken, and then none of them is queued." The second request's id 7 is taken
by the first one: expected Refused with CHOICE_TAKEN, and nothing waits. With the bug both wait; the
prefill of both is refused, and so is each later generate, also one of other requests, until a reset
(they are admitted one at a time only if not both fit, and one output replaces the other).
"""
from common_b import *
from impl.host import Host

host = Host(engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2)))
requests = [Request(id=7, prompt=(1, 2), params=Params(max_new=2)),
            Request(id=7, prompt=(3, 4), params=Params(max_new=3))]
seen = attempt(host.generate, requests)
if isinstance(seen, dict):
    seen = {key: len(output.tokens) for key, output in seen.items()}
verdict((("Refused", ("CHOICE_TAKEN",)), ()), (seen, host.state.waiting))
