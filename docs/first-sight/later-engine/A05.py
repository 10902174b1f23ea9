"""A clone into slot 0, named by the caller, while slot 0 is in use: SLOT_USED.

The parent is in slot 0, and slot 1 is free. The caller asks for child 0, not for any slot.
"""
from common import *

e = engine(8, 4, 3, 2)
e.prefill([req(1, (1, 2), 4)])
check(why(e.clone, 0, 0, choice=1), "SLOT_USED", "a clone of slot 0 into slot 0")
check(e.stats().active, 1, "slots in use")
