"""A sequence ends as soon as its generated tokens END with a stop sequence; none is matched against
tokens that were enqueued. Generated: drawn, 7, 8, 9, drawn: it does not end with (7, 8)."""
from common import *

m, s = start(geometry(pages=8, page_size=2, slots=4, pages_per_seq=6))
params = Params(max_new=8, stops=((7, 8),))
s = run(m, s, act.Prefill((Request(id=1, prompt=(5, 6), params=params),)))
s = run(m, s, act.Enqueue(0, 7), act.Enqueue(0, 8), act.Enqueue(0, 9), act.Round())
seen("outputs", [(o.request, o.reason.name) for o in s.outputs], [])
seen("cells written, tokens", s.sequences[0] and (s.sequences[0].written, len(s.sequences[0].tokens)), (6, 7))
