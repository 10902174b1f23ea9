"""Request 7 ends in slot 0, which is freed; its output is not taken. Slot 0 is reserved again,
without a prompt. Clone(0) is refused since the parent has no prompt: SLOT_EMPTY. CHOICE_TAKEN is not
asked beside SLOT_EMPTY (and the parent has no request whose choice could be taken)."""
from common_b import *

e = engine(Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2))
e.prefill([Request(id=7, prompt=(5, 6), params=Params(max_new=1))])
e.reserve(0)
verdict(("Refused", ("SLOT_EMPTY",)), attempt(e.clone, 0, choice=0))
