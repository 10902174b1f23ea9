"""The positions of a slot must be its next ones, each once (docs/actions.md, "Allocate", "Write"):
a batch that names position 0 twice and leaves out position 1 is refused with BATCH_POSITIONS.
"""
from common import check, engine, why

e = engine(8, 4, 2, 4)
e.reserve(0)
check(why(e.allocate, [(0, 0), (0, 2)]), "BATCH_POSITIONS", "a gap")
check(why(e.allocate, [(0, 0), (0, 0)]), "BATCH_POSITIONS", "a repetition")
check(why(e.allocate, [(0, 0), (0, 0), (0, 2)]), "BATCH_POSITIONS", "a repetition and a gap")
check(e.stats().free_pages, 8, "free pages")
