"""Two requests of one id in a prefill, with another between them: CHOICE_TAKEN."""
from common import *

e = engine(8, 4, 3, 2)
requests = [req(1, (1,), 3), req(2, (2,), 3), req(1, (3,), 3)]
check(why(e.prefill, requests), "CHOICE_TAKEN", "a prefill of ids 1, 2, 1")
check(e.stats().active, 0, "slots in use")
