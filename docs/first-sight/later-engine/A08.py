"""Drafts of two proposals count together against max_new.

max_new is 4. The first 2 drafts: 2 tokens would follow the prompt, below 4. With 2 more it would be
4 tokens, known and proposed, "max_new tokens or more": TOO_LONG. (Of 8 positions only 2 + 4 = 6
would be used, and the queue has room for 4 entries or more, so there is no other reason.)
"""
from common import *

e = engine(8, 4, 2, 2)
e.reserve(0)
e.assign(0, (1, 2), Params(max_new=4), request=1)
check(why(e.propose, 0, (7, 8)), None, "the first proposal")
check(why(e.propose, 0, (5, 6)), "TOO_LONG", "the second proposal")
check(int(e.extract().slots.proposed[0]), 2, "drafts")
