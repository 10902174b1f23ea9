"""A token that was enqueued has no log-probability; a drawn one has, also where an earlier choice of that name had an enqueued one."""
from common import *
from conformance.lockstep.lockstep import Lockstep, Violation
from spec import model

class Scored(SpecEngine):
    """Its log-probability of the second token of each output is too low by 0.25."""
    given = ()
    def apply(self, action):
        if isinstance(action, act.TakeOutputs):
            self.given = [list(model.logprobs(o.prompt, o.tokens)) for o in self.s.outputs]
            for one in self.given: one[1] -= 0.25
        return super().apply(action)
    def logprobs(self): return self.given

def clause(*actions):
    lock = Lockstep(Scored(profile()))
    try:
        for a in actions: lock.do(a)
    except Violation as wrong: return wrong.clause
    return "nothing"

def request(new): return act.Prefill((Request(id=1, prompt=(5, 6), params=Params(max_new=new)),))

# By hand: positions 0 and 1 are the prompt, the first drawn token is at 2, an enqueued one after it at 3.
# In the first history the second generated token, at 3, was enqueued: its entry may have any value.
seen("enqueued", clause(request(4), act.Enqueue(0, 9), act.Generate(), act.TakeOutputs()), "nothing")
# In the second one, that sequence is freed unfinished. The next request of this id draws its token at 3: it is wrong.
seen("drawn", clause(request(4), act.Enqueue(0, 9), act.Free(0), request(3), act.Generate(), act.TakeOutputs()), "ALONE")
