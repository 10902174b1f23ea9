"""A right engine with a prefix cache refuses for lack of pages: the hit takes all that are spare.

Four pages of 4. A prompt of 13 tokens is computed and ends: three full pages stay cached. A second
sequence takes the fourth. The first prompt again hits 12 tokens, on the three spare pages, and one
more cell needs a fourth: there is none, however small the chunk is.
"""

import sys
from collections import Counter

from conformance.harnesses.prefix_caching import Compute, End, Start, replay
from spec.vocabulary import Geometry

GEOMETRY = Geometry(pages=4, slots=4, page_size=4, pages_per_seq=4)


class Engine:
    drops = False

    def __init__(self, geometry):
        self.geometry, self.rows, self.cached = geometry, {}, {}

    def _free(self):
        named = {page for row in self.rows.values() for page in row}
        return [page for page in range(self.geometry.pages) if page not in named]

    def _take(self, slot, tokens, count):
        row, size = self.rows.get(slot, []), self.geometry.page_size
        free = sorted((p for p in self._free() if p not in row), key=lambda p: p in self.cached.values())
        wanted = -(-count // size) - len(row)
        if wanted > len(free):
            return False
        for page in free[:wanted]:
            self.cached = {text: held for text, held in self.cached.items() if held != page}
            row = [*row, page]
        self.rows[slot] = row
        return True

    def start(self, slot, tokens, count):
        size, hit = self.geometry.page_size, []
        while (end := (len(hit) + 1) * size) < len(tokens) and tokens[:end] in self.cached:
            hit.append(self.cached[tokens[:end]])
        given = min(len(tokens), max(count, len(hit) * size + 1))
        self.rows[slot] = hit
        if not self._take(slot, tokens, given):
            del self.rows[slot]
            return None
        return len(hit) * size, given

    def grow(self, slot, tokens, count):
        return count if self._take(slot, tokens, count) else None

    def computed(self, slot, tokens):
        size = self.geometry.page_size
        for index in range(len(tokens) // size):
            self.cached.setdefault(tokens[: (index + 1) * size], self.rows[slot][index])

    def end(self, slot, tokens):
        del self.rows[slot]

    def row(self, slot):
        return tuple(self.rows.get(slot, ()))

    def spare(self):
        return self._free()

    def counts(self):
        return None


prompt = (1, 0) * 6 + (1,)
ops = (Start(0, prompt, 13), Compute(), End(0), Start(1, (0,), 1), Compute(), Start(0, prompt, 4))
seen = Counter()
broken = replay(Engine, GEOMETRY, ops, seen)
print(broken or f"right, {seen['refused']} refused")
assert broken is not None or seen["refused"] == 1
sys.exit(broken is not None)
