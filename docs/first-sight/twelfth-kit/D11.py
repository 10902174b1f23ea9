"""The harness of prefix caching, on a prompt that lies whole in the cache.

The last token of a prompt must be computed, or no token can be drawn from it: of a prompt of 4
tokens in pages of 4 nothing can be hit, of one of 5 tokens one page. The first engine below keeps to
that, and the second hits the whole prompt, which must be told (SHARE).
"""
import sys
from collections import Counter

from conformance.harnesses.prefix_caching import Compute, End, Start, replay
from spec.vocabulary import Geometry


class Cached:
    """Pages in order; full computed ones are found by their text."""

    drops = False
    greedy = False

    def __init__(self, geometry):
        self.geometry, self.rows, self.known = geometry, {}, {}

    def start(self, slot, tokens, count):
        size, row = self.geometry.page_size, []
        most = len(tokens) - (not self.greedy)
        while (len(row) + 1) * size <= most and tokens[: (len(row) + 1) * size] in self.known:
            row.append(self.known[tokens[: (len(row) + 1) * size]])
        hit = len(row) * size
        while len(row) * size < len(tokens):
            row.append(self.spare()[0] if not row else next(p for p in self.spare() if p not in row))
        self.rows[slot] = row
        return hit, len(tokens)

    def computed(self, slot, tokens):
        size = self.geometry.page_size
        for index in range(len(tokens) // size):
            self.known.setdefault(tokens[: (index + 1) * size], self.rows[slot][index])

    def end(self, slot, tokens):
        del self.rows[slot]

    def row(self, slot):
        return tuple(self.rows[slot])

    def spare(self):
        named = {page for row in self.rows.values() for page in row}
        return [page for page in range(self.geometry.pages) if page not in named]

    def counts(self):
        return None


class Greedy(Cached):
    """Hits the whole prompt."""

    greedy = True


SIZES = Geometry(pages=8, slots=4, page_size=4, pages_per_seq=4)
FOUR, FIVE = (0, 1, 0, 1), (0, 1, 0, 1, 1)
PLAIN = (Start(0, FOUR, 4), Compute(), Start(1, FIVE, 5), Compute(), End(1))
AGAIN = (Start(0, FOUR, 4), Compute(), Start(1, FOUR, 4), Compute(), End(1))

seen = Counter()
for make, ops, wanted in (
    (Cached, PLAIN, None), (Cached, AGAIN, None), (Greedy, PLAIN, None), (Greedy, AGAIN, "SHARE")
):
    found = replay(make, SIZES, ops, seen)
    print(make.__name__, found)
    if (found and found.clause) != wanted:
        sys.exit(1)
assert seen["hit"] >= 2
