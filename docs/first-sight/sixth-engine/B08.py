"""`Host.generate` beside a sequence that was prefilled with the engine, without the host.

Docstring of generate: "Serve these requests, and those submitted before, until nothing is left to
do. Returns every output that finishes meanwhile or was not taken yet". The sequence of request 1
has max_new 20: one token from the prefill, 19 rounds. limits.rounds is 8, so that generate has to
call the device three times. Nothing is left to do only when the queue is empty. Expected: both
outputs, with 20 and 2 tokens, and no token queued. With the bug generate returns when its own
request 2 has left, and the sequence of request 1 stays unfinished.
"""
from common_b import *
from impl.host import Host

made = engine(Geometry(pages=16, page_size=4, slots=2, pages_per_seq=8))
host = Host(made)
made.prefill([Request(id=1, prompt=(5, 6), params=Params(max_new=20))])
outputs = host.generate([Request(id=2, prompt=(1, 2), params=Params(max_new=2))])
verdict(({(1, 0): 20, (2, 0): 2}, 0),
        ({key: len(one.tokens) for key, one in sorted(outputs.items())}, host.stats().queued))
