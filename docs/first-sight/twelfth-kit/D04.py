"""An engine with a watermark refuses (OUT_OF_PAGES) a batch that would take the last free pages.

By hand: 4 pages, all free, and two slots that take 2 pages each in one batch (3 cells in pages of 2): the specification does
it, exactly 4 of 4. The engine keeps one page back and refuses, as it may. So no batch of several slots
has taken the last free pages: nothing is reached but a refusal. In the second case 3 pages are free
and 4 are wanted: one page short, which is reached by the refusal. In the third the batch is done.
"""
import sys

from conformance.lockstep.lockstep import Lockstep
from conformance.protocol import Profile
from conformance.rungs.coverage import Coverage
from conformance.rungs.pages import REFUSED, SEVERAL_LAST, SEVERAL_SHORT, SHORT
from common import SpecEngine
from spec.machines.actions import Allocate, Assign, Free, Reserve, Write
from spec.vocabulary import CleanupMode, Geometry, Params, Reason, Refusal, Refused, default_limits

SIZES = Geometry(pages=4, page_size=2, slots=3, pages_per_seq=2)
BATCH = tuple((slot, position) for slot in (0, 1) for position in range(3))


class Watermark(SpecEngine):
    """It keeps one page back for a batch that needs more than one."""

    keeps = 1

    def apply(self, action):
        free = self.s.counts.count(0)
        if isinstance(action, Allocate) and len(action.batch) > 2 and free - 4 < self.keeps:
            raise Refused([Refusal(Reason.OUT_OF_PAGES, None, None)])
        super().apply(action)


def reached(keeps, *before):
    """The corners that the batch reaches on an engine after these steps."""
    profile = Profile(
        name="watermark", geometry=SIZES, limits=default_limits(SIZES),
        cleanup=CleanupMode.INCREMENTAL, refuses="may_refuse_more",
        actions={Reserve, Assign, Allocate, Write, Free},
    )
    engine = Watermark(profile)
    engine.keeps = keeps
    lockstep, coverage = Lockstep(engine), Coverage()
    for step in (Reserve(0), Reserve(1), *before):
        assert not lockstep.do(step)
    held = lockstep.state
    reasons = lockstep.do(Allocate(BATCH))
    coverage.record(held, Allocate(BATCH), reasons, lockstep.state)
    corners = {name for name in (SEVERAL_LAST, SEVERAL_SHORT, SHORT, REFUSED) if coverage.corners[name]}
    return bool(reasons), corners


cases = {
    "refused by the watermark": (reached(1), (True, {REFUSED})),
    "one page short": (
        reached(1, Reserve(2), Allocate(((2, 0),))), (True, {REFUSED, SHORT, SEVERAL_SHORT})
    ),
    "done": (reached(0), (False, {SEVERAL_LAST})),
}
for name, (found, expected) in cases.items():
    print(f"{name}: refused {found[0]}, reached {sorted(found[1])}")
sys.exit(0 if all(found == expected for found, expected in cases.values()) else 1)
