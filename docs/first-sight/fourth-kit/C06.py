"""Online softmax weighs a tile by its own maximum where an earlier tile had a larger one.

spec.attention: `online` is "the same as `naive` in real arithmetic"; docs/sources.md, "Online
softmax". Two cells with scores ln 2 and 0 have the weights 2 and 1, so with values 0 and 3 the mean
is (2 * 0 + 1 * 3) / 3 = 1, also with tiles of one cell, of which the first has the larger score.
In the other order of the cells the result is 1 as well.
"""

import math

from common_c import report

from spec.attention import naive, online

keys, values = [[math.log(2)], [0.0]], [[0.0], [3.0]]


def rounded(result):
    return [round(one, 9) for one in result]


report(
    ("naive", [1.0], rounded(naive([1.0], keys, values, scale=1.0))),
    ("online, falling", [1.0], rounded(online([1.0], keys, values, tile=1, scale=1.0))),
    ("online, rising", [1.0], rounded(online([1.0], keys[::-1], values[::-1], tile=1, scale=1.0))),
)
