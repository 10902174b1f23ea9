"""A refused round changes nothing, also with cleanup END.

Requests 1 (max_new 1) and 2 (max_new 3) are prefilled in slots 0 and 1. Request 1 ends with its
first token; slot 1 is unfinished, so END frees nothing. Slot 1 is then freed by the caller, its
queued token with it. Only the finished slot 0 is left, and no prefill or round has ended since, so
it stays. The next round is refused (QUEUE_EMPTY), and after it slot 0 is in use as before.
"""
from common import *

e = engine(8, 4, 3, 2, cleanup=CleanupMode.END)
e.prefill([req(1, (1, 2), 1), req(2, (3, 4), 3)])
e.free(1)
check(e.stats().active, 1, "slots in use before the round")
check(why(e.round), "QUEUE_EMPTY", "the round")
check(e.stats().active, 1, "slots in use after the refused round")
check(e.stats().pages_in_use, 1, "pages after the refused round")
