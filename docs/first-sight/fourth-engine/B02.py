"""A round takes no more tokens than there are slots, though limits.round_tokens is larger.

docs/actions.md, Round: "queued tokens, at most `limits.round_tokens`, get cells and are written."
With two slots and round_tokens 4, a prompt of 2 is prefilled: its drawn token is queued (position
2). Two enqueued tokens follow (positions 3, 4), so three are queued, and one round takes all
three: 5 cells are written, the last known token is among them, so one is drawn (6 known), and the
queue holds that one.
"""

from common_b import Geometry, Params, Request, engine, verdict

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
one = engine(geometry, round_tokens=4, queue=8)
one.prefill([Request(id=1, prompt=(3, 4), params=Params(max_new=9))])
one.enqueue(0, 8)
one.enqueue(0, 9)
one.round()
state = one.extract()
seen = int(state.slots.written[0]), int(state.slots.known[0]), int(state.queue.filled)
verdict((5, 6, 1), seen)
