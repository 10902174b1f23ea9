from common import *
# Prompt of 4 in pages of 4: two choices hold the one page together. 8 pages: 1 in use, 7 free.
e = engine(8, 4, 4, 2)
e.prefill([req(1, (1, 2, 3, 4), 3, n=2)])
check((e.stats().pages_in_use, e.stats().free_pages), (1, 7), "pages in use and free")
