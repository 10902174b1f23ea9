from common import *
from spec.attention import visible
# A window of 3 at query 6 is positions 4, 5, 6; below kv_len 5 there is only 4. At query 9 it is
# 7, 8, 9, and none of them is below 5.
seen("query 4 of 5", tuple(visible(4, 5, 3)), (2, 3, 4))
seen("query 6 of 5", tuple(visible(6, 5, 3)), (4,))
seen("query 9 of 5", tuple(visible(9, 5, 3)), ())
