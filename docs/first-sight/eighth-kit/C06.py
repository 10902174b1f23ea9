from common import *
# Two slots, two outputs held at most. Two requests of one token each leave two outputs. A third
# request of three tokens may end with its first (a stop), and its output would be the third.
g = geometry(slots=2)
m, s = start(g, outputs=2)
one = lambda i: Request(id=i, prompt=(i,), params=Params(max_new=1))
s = run(m, s, act.Prefill((one(1), one(2))))
seen("outputs", len(s.outputs), 2)
more = Request(id=3, prompt=(3,), params=Params(max_new=3, stops=((7,),)))
seen("a prefill with full outputs", reasons(m, s, act.Prefill((more,))), {"OUTPUTS_FULL"})
s = run(m, s, act.Submit(more))
seen("an admission with full outputs", reasons(m, s, act.Admit()), {"OUTPUTS_FULL"})
