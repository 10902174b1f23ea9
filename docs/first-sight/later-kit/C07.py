"""Log-probabilities are those of the model with its window."""
from common import *
from spec import model
# By hand: with a window of 1 a query sees its own position alone, in each layer. So the last hidden state before
# the generated token depends on the last token, 9, and on its position, 2, and on nothing before it.
one, other = model.logprobs((1, 2, 9), (4,), 1), model.logprobs((5, 6, 9), (4,), 1)
seen("window 1", one, other)
# Without a window it depends on the whole prefix. (Two 24-bit hashes; they differ.)
seen("no window", model.logprobs((1, 2, 9), (4,)) != model.logprobs((5, 6, 9), (4,)), True)
