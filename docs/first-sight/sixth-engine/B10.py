"""A waiting request whose id a sequence that was prefilled without the host has.

Docstring of Stalled: a cause is "a waiting request with the id of one that was prefilled without
the host, and whose output is among these"; of Host: outputs that have left the device are kept for
the next return, "until then their ids are taken". So request 5 that waits may not be admitted
before the output (5, 0) of the other sequence, which generate has collected, has been returned.
Expected: generate raises Stalled that holds this output (6 tokens), the request still waits, and
the next generate serves it: 3 tokens. With the bug it is admitted beside the kept output, and only
one of the two outputs of the name (5, 0) is returned: the other is lost.
"""
from common_b import *
from impl.host import Host, Stalled

made = engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2))
host = Host(made)
host.submit(Request(id=5, prompt=(1, 2), params=Params(max_new=3)))
made.prefill([Request(id=5, prompt=(7,), params=Params(max_new=6))])
lens = lambda outputs: {key: len(one.tokens) for key, one in outputs.items()}
seen = []
try:
    seen.append(lens(host.generate([])))
except Stalled as error:
    seen.append(("Stalled", lens(error.outputs), len(host.state.waiting)))
seen.append(lens(host.generate([])))
verdict([("Stalled", {(5, 0): 6}, 1), {(5, 0): 3}], seen)
