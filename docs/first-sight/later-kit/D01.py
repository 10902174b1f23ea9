"""ALONE: the log-probability of a token is that of naive decoding; NaN is not."""
from common import *
from conformance.lockstep.lockstep import Lockstep, Violation
from spec import model

def logprobs_of(outputs, nan):
    return [[math.nan] * len(o.tokens) if nan else list(model.logprobs(o.prompt, o.tokens)) for o in outputs]

import math
class Scored(SpecEngine):
    nan, given = False, ()
    def apply(self, action):
        if isinstance(action, act.TakeOutputs): self.given = logprobs_of(self.s.outputs, self.nan)
        return super().apply(action)
    def logprobs(self): return self.given

# By hand: one request of one token has one log-probability, a number that is not above 0. An engine that gives the
# right one is right, and one that gives NaN is wrong: clause ALONE.
for nan, expected in ((False, "nothing"), (True, "ALONE")):
    engine = Scored(profile()); engine.nan = nan
    lock = Lockstep(engine); found = "nothing"
    try:
        for a in (act.Prefill((Request(id=1, prompt=(5, 6), params=Params(max_new=1)),)), act.TakeOutputs()): lock.do(a)
    except Violation as wrong: found = wrong.clause
    seen(f"NaN {nan}", found, expected)
