"""An engine whose logprobs lack the last entry of an output violates ALONE."""
from common import *
from conformance.lockstep.run import replay
from conformance.protocol import CALLS, Profile
from spec import model

class Short(SpecEngine):
    """Right but for the log-probabilities: the last token of each output has none."""
    taken = ()
    def apply(self, action):
        if isinstance(action, act.TakeOutputs):
            self.taken = self.s.outputs
        super().apply(action)
    def logprobs(self):
        return [list(model.logprobs(o.prompt, o.tokens))[: len(o.tokens) - self.lacks] for o in self.taken]

def clause(lacks):
    g = geometry()
    def make():
        engine = Short(Profile(name="e", geometry=g, limits=default_limits(g), cleanup=CleanupMode.INCREMENTAL, actions=CALLS - {act.Append}))
        engine.lacks = lacks
        return engine
    history = (act.Prefill((Request(id=1, prompt=(5, 6), params=Params(max_new=3)),)), act.Generate(), act.TakeOutputs())
    found = replay(make, history, serve=False)
    return found and found.clause

seen("with every log-probability", clause(0), None)
seen("without the last log-probability", clause(1), "ALONE")
