"""Which blind oracles are not shown to be blind, for each combination of what was caught.

By hand, from the documentation: it catches the bug that it should miss, or misses the one that it
should see, or fuzzing misses the former as well. So of eight combinations one alone is blind.
"""
import sys
from itertools import product

from conformance.seeded_bugs.scoring.score import not_shown_blind


def tally(caught):
    return {
        "tries": 5, "caught": 5 * caught, "share": float(caught), "steps": None, "seconds": None,
        "worst": None, "shrunk": None, "clauses": [], "errors": [],
    }


wrong = False
for missed, seen, kit in product((False, True), repeat=3):
    row = {
        "oracle": "sums", "what": "", "misses": "AL1", "sees": "CL6",
        "missed": tally(missed), "seen": tally(seen), "kit": tally(kit),
    }
    is_blind = not missed and seen and kit
    found = not_shown_blind([row]) == []
    print(f"caught: its blind spot {missed}, what it sees {seen}, fuzz {kit}: blind {found}")
    wrong |= found != is_blind
sys.exit(int(wrong))
