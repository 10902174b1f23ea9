"""Pages of four. A prompt of 2 tokens is written and draws a token: 3 known, 2 written, and the drawn
one is queued. Propose 3 drafts at positions 3, 4, 5 (all four wait in the queue), and allocate cells 2 to 5. None
is written. Truncate to 4: the drafts at 4 and 5 are cut, that at 3 stays: proposed is 1, and
two tokens stay queued (positions 2 and 3)."""
from common_b import *

e = engine(Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2))
e.prefill([Request(id=1, prompt=(5, 6), params=Params(max_new=6))])
e.propose(0, (7, 8, 9))
e.allocate([(0, position) for position in (2, 3, 4, 5)])
e.truncate(0, 4)
s = e.extract()
verdict((3, 1, 4, 2), (int(s.slots.known[0]), int(s.slots.proposed[0]), int(s.slots.allocated[0]), int(s.queue.filled)))
