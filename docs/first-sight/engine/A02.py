from common import *
# Two sequences of 4 tokens in pages of 4; the next round begins a page for each: 2 of 6 free pages.
e = engine(8, 4, 4, 2)
e.prefill([req(1, (1, 2, 3, 4), 4), req(2, (5, 6, 7, 8), 4)])
check(why(e.round), None, "round in which two sequences begin a page, 6 pages free")
check(e.stats().pages_in_use, 4, "pages in use after it")
