"""scheduling.md: "pack the first `round_tokens` queued tokens ... Tokens leave the queue in order of arrival"."""
from common import *
from spec.machines.actions import *
m, s = start(geometry(pages=16, slots=2), ladder.machine("scheduling"), round_tokens=1)
p = Params(max_new=6)
s = run(m, s, Prefill((Request(id=1, prompt=(1, 2), params=p), Request(id=2, prompt=(3, 4), params=p))))
at = lambda s: [(q.slot, q.position) for q in s.queue]
seen("queue", at(s), [(0, 2), (1, 2)])
s = run(m, s, Round())  # the token of slot 0 leaves; the one that is drawn comes last
seen("queue after a round", at(s), [(1, 2), (0, 3)])
seen("packed", [(q.token, q.slot) for q in s.queue[:1]], [(s.sequences[1].tokens[2], 1)])
s = run(m, s, Round())  # the oldest is that of slot 1
seen("queue after two rounds", at(s), [(0, 3), (1, 3)])
seen("generated", [len(q.tokens) - 2 for q in s.sequences], [2, 2])
