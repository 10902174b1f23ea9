"""A reset of either mode forgets every sequence, queued token, request and output (docs/actions.md,
"Reset"). So nothing is left to be taken after it, and the ids of the forgotten outputs are free.
"""
from common import check, engine, req, why
from spec.vocabulary import ResetMode

e = engine(8, 4, 2, 4)
e.prefill([req(1, (5, 6), 1)])
e.reset(ResetMode.LOGICAL)
check(len(e.take_outputs()), 0, "outputs after a logical reset")
e.prefill([req(1, (5, 6), 1)])
e.reset(ResetMode.PHYSICAL)
check(why(e.prefill, [req(1, (5, 6), 1)]), None, "the id of an output that a reset forgot")
check(len(e.take_outputs()), 1, "outputs after a physical reset and one prefill")
