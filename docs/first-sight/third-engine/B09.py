"""A sequence draws its next token from the row of its last known token, also when a round takes
several of its tokens. The round writes the first greedy token and the enqueued 7, so it draws what
the exact model gives after the prompt, that token and 7."""
from common import *

GREEDY, AFTER_SEVEN = (32566,), 13074

e = engine(8, 4, 2, 4, round_tokens=2)
e.prefill([req(1, (5, 6, 7), 3)])
e.enqueue(0, 7)
e.round()
(output,) = e.take_outputs()
check(output.tokens, (GREEDY[0], 7, AFTER_SEVEN), "tokens after a round of two tokens of one slot")
