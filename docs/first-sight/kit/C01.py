from common import *
from spec.machines import naive
# Two stop sequences, of 1 and 3 tokens. The generated tokens (7,) end with the first: a stop.
p = Params(max_new=5, stops=((7,), (1, 2, 3)))
seen("finish of (7,)", naive.finish((7,), p), FinishReason.STOP)
seen("finish of (1, 2, 3)", naive.finish((1, 2, 3), p), FinishReason.STOP)
