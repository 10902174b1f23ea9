"""A state is injected in which a leak has left page 3 with a count of 1 that no row explains, so that
7 pages are free. A logical reset clears the metadata "from every state and unconditionally"
(docs/lifecycle.md): afterwards all 8 pages are free, and the largest count is 0."""
from common_b import *

e = engine(Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2))
s = e.extract()
counts = s.pages.counts.copy()
counts[3] = 1
e.inject(s._replace(pages=s.pages._replace(counts=counts)))
before = e.stats().free_pages
e.reset()
verdict((7, 8, 0), (before, e.stats().free_pages, e.stats().largest_count))
