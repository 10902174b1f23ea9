"""Log-probabilities move to earlier tokens behind an enqueued one.

docs/serving.md: an output has "the log-probability of each of its tokens", and a request gets the
tokens of its own text. A first request draws g0, is given the token 9 by Enqueue, and draws g1. A
second one has the prompt (1, 2, 3, g0, 9): the same text, greedy, so it draws g1 from the same row,
with the same log-probability. So entry 2 of the first output is entry 0 of the second (entry 1, of
the given token, was never computed, and is not compared).
"""

from common_b import Geometry, Params, Request, engine, verdict

one = engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4), logprobs=True)
one.prefill([Request(id=1, prompt=(1, 2, 3), params=Params(max_new=3))])
first = int(one.extract().slots.tokens[0, 3])
one.enqueue(0, 9)
one.generate()
one.prefill([Request(id=2, prompt=(1, 2, 3, first, 9), params=Params(max_new=1))])
forced, plain = one.take_outputs()
assert forced.tokens == (first, 9, *plain.tokens)
verdict(plain.logprobs[0], forced.logprobs[2])
