"""A pool of exactly slots * pages_per_seq pages never lacks one, so no run has to reach that."""
from common import *
from conformance.protocol import Profile
from conformance.rungs.coverage import Coverage, offered_by
from conformance.rungs.pages import FULL

def required(pages):
    g = Geometry(pages=pages, slots=4, page_size=4, pages_per_seq=4)
    p = Profile(name="pool", geometry=g, limits=default_limits(g), cleanup=CleanupMode.INCREMENTAL, actions={act.Reserve, act.Allocate, act.Free})
    return set(Coverage().coverable(offered_by(p, [g], poisonable=False)))

lack = "Allocate: OUT_OF_PAGES"
seen("15 pages for 16 entries of rows", (lack in required(15), FULL in required(15)), (True, True))
seen("16 pages for 16 entries of rows", (lack in required(16), FULL in required(16)), (False, True))
seen("17 pages for 16 entries of rows", (lack in required(17), FULL in required(17)), (False, False))
