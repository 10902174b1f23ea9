"""255 choices of one request share the one full page of its prompt: its count is 255, and 1 page is in
use. With 256 choices the count is 256, and the page is as little free."""
from common_b import *

seen = []
for n in (255, 256):
    e = engine(Geometry(pages=300, page_size=4, slots=256, pages_per_seq=2))
    e.prefill([Request(id=1, prompt=(1, 2, 3, 4), params=Params(max_new=3), n_generations=n)])
    stats = e.stats()
    seen.append((stats.largest_count, stats.pages_in_use, stats.free_pages, int(e.extract().pages.counts[0])))
verdict([(255, 1, 299, 255), (256, 1, 299, 256)], seen)
