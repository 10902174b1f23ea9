"""A temperature between 0 and 1 stays above 0 in later rounds.

The integer model adds a random word of (seed, choice, position) wherever the temperature is above
0, whatever it is, and none at 0, which is greedy. So the tokens at 0.5 are those at 1.0. They are
not the greedy ones (checked below, for this seed).
"""
from common import *

seen = {}
for temperature in (0.0, 1.0, 0.5):
    e = engine(8, 4, 2, 2)
    (output,) = Host(e).generate([req(1, (1, 2, 3), 4, temperature=temperature, seed=5)]).values()
    seen[temperature] = output.tokens
check(seen[1.0] != seen[0.0], True, "drawn and greedy tokens differ")
check(seen[0.5], seen[1.0], "tokens at temperature 0.5")
