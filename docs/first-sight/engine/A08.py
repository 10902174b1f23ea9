from common import *
# Two choices share the prompt's full page and end in the same round; then every page is free.
h = Host(engine(8, 4, 4, 2))
check(len(h.generate([req(1, (1, 2, 3, 4), 3, n=2)])), 2, "outputs")
check(h.stats().pages_in_use, 0, "pages in use when all has finished")
