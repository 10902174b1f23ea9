"""Online attention is naive attention. Two equal scores of -1000: the mean of the values, 1 and 3, is 2."""
from common import *
from spec import attention

q, keys, values = (1.0,), ((-1000.0,), (-1000.0,)), ((1.0,), (3.0,))
for tile in (1, 2):
    try:
        found = attention.online(q, keys, values, tile=tile, scale=1.0)
    except ZeroDivisionError as error:
        found = repr(error)
    seen(f"online, tile {tile}", found, [2.0])
seen("naive", attention.naive(q, keys, values, scale=1.0), [2.0])
# In the ratio 3 to 1, far below 0: (3 * 0 + 1 * 4) / 4 = 1.
import math
(found,) = attention.online(q, ((-740 + math.log(3),), (-740.0,)), ((0.0,), (4.0,)), tile=1, scale=1.0)
seen("ratio of 3 to 1", round(found, 6), 1.0)
