from common import *
# Request 7, choice 0 has ended by its limit of 1 token; its output waits. Choice 1 cannot be cloned as choice 0.
m, s = start()
s = run(m, s, act.Prefill((Request(id=7, prompt=(1, 2), params=Params(max_new=1)),)), act.Reserve(0),
        act.Assign(0, (3, 4), Params(max_new=3), 7, 1), *written(0, 2))
seen("outputs", [(o.request, o.choice) for o in s.outputs], [(7, 0)])
seen("Clone(0, choice=0)", reasons(m, s, act.Clone(0, choice=0)), {"CHOICE_TAKEN"})
