"""A prefill asks for free pages; a page that several sequences share is one page."""
from common import *

e = engine(6, 4, 5, 3)
e.prefill([req(1, tuple(range(1, 9)), 3, n=3)])  # 2 full pages, shared by 3 sequences
s = e.stats()
check((s.pages_in_use, s.free_pages), (2, 4), "pages after 3 choices of one 8-token prompt")
# 4 pages are free, and the second request needs ceil(5 / 4) = 2
check(why(e.prefill, [req(2, (1, 2, 3, 4, 5), 3)]), None, "a prefill that needs 2 of 4 free pages")
check(e.stats().pages_in_use, 4, "pages after both")
