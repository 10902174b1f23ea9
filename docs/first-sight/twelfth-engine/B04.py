"""A forced token is queued behind a drawn one; one round decodes both, and both leave the queue."""
from common import check, engine, req

prompt = (1, 2, 3)
one = engine(pages=8, page_size=4, slots=2, pages_per_seq=4)
one.prefill([req(1, prompt, 1)])
drawn = one.take_outputs()[0].tokens
one.prefill([req(1, prompt + drawn + (7,), 4)])
one.generate()
rest = one.take_outputs()[0].tokens  # greedy: the text goes on in the same way after a given text

one.prefill([req(1, prompt, 6)])
one.enqueue(0, 7)
check(one.stats().queued, 2, "queued: the drawn token and the forced one")
one.round()
check(one.stats().queued, 1, "queued after a round of both: the token that was drawn in it")
one.generate()
check([out.tokens for out in one.take_outputs()], [drawn + (7,) + rest], "outputs")
print("right")
