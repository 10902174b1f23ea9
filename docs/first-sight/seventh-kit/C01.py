"""A stop inside the text is passed: "it ends as soon as the generated tokens end with one"."""
from common import *
m, s = start()
p = Params(max_new=6, stops=((5, 6),))
s = run(m, s, act.Prefill((Request(id=1, prompt=(1, 2), params=p),)), act.Enqueue(0, 5), act.Enqueue(0, 6), act.Round())
# Generated: drawn, 5, 6, drawn. No stop is matched against enqueued tokens; the text ends with a drawn one.
text = s.sequences[0].tokens if s.sequences[0] else s.outputs
seen("tokens", len(text), 6)
seen("outputs", s.outputs, ())
seen("queue", [(q.slot, q.position) for q in s.queue], [(0, 5)])
