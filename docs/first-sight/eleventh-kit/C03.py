"""OUT: one of several outputs is lost while another stays."""
from common import *
from spec import clauses
from spec.view import View

def shown(*outputs):
    free = ((INVALID,) * 4,) * 4
    return View(geometry=geometry(), counts=(0,) * 8, used=(False,) * 4, rows=free, outputs=outputs)

def judged(before, after):
    return [name for name, _ in clauses.step_violations(before, after)]

one, two, three = ((name, 0, (7, 8), FinishReason.LIMIT) for name in (1, 2, 3))
seen("taken", judged(shown(one, two), shown()), [])
seen("one more", judged(shown(one, two), shown(one, two, three)), [])
seen("the first is lost", judged(shown(one, two), shown(two)), ["OUT"])
seen("the last is lost as another comes", judged(shown(one, two), shown(one, three)), ["OUT"])
