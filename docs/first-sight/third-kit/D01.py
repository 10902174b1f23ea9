"""An engine with a rule of its own that answers alike in the same place is right, so lockstep must
not find it. While a request waits, nothing is in the initial state: the same Submit there is another
place than the Submit that was done at the very beginning, although no slot is in use in either.
"""
from common import *
from conformance.lockstep.run import replay


class OneWaits(SpecEngine):
    """Refuses a second waiting request; its profile says that it may refuse more."""

    def apply(self, action):
        if isinstance(action, act.Submit) and self.s.waiting:
            raise Refused([Refusal(Reason.QUEUE_FULL, None, None)])
        return super().apply(action)


one, two = (act.Submit(Request(id=n, prompt=(5,), params=Params(max_new=1))) for n in (1, 2))
found = replay(
    lambda: OneWaits(profile(refuses="may_refuse_more")),
    (two, act.Reset(), one, two),  # the last one is refused, by the engine's own rule
    serve=False,
)
seen("the finding on a right engine", found and f"{found.clause}: {found.message}", None)
