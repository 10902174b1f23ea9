"""An engine that may refuse more must grant again what it granted after the same actions.

The pool has one page. The engine loses it at Free: its own count says 1 used for ever, and it shows no
counts. The second time, Reserve is done and Allocate is refused with OUT_OF_PAGES, though the
specification has a free page. docs/adapters.md, `refuses`: it may refuse a legal action only if it "did
not do that action before after the same actions from the initial state"; Reserve, Allocate was done
before from there, so this is a violation at step 5, and of CONS, since the refused thing is a page.
"""

from common_d import compare, profile
from conformance.lockstep.run import replay
from spec.machines.actions import Allocate, Free, Reserve
from spec.view import View
from spec.vocabulary import Geometry, Reason, refused

sizes = Geometry(pages=1, page_size=1, slots=1, pages_per_seq=1)


class Leaky:
    """A pool that never takes a page back."""

    def __init__(self):
        self.profile = profile(
            sizes, actions={Reserve, Allocate, Free}, refuses="may_refuse_more", policy="any"
        )
        self.used, self.row, self.left = False, (), 1

    def apply(self, action):
        match action:
            case Reserve():
                self.used = True
            case Allocate():
                if not self.left:
                    raise refused(Reason.OUT_OF_PAGES)
                self.left, self.row = self.left - 1, (0,)
            case Free():
                self.used, self.row = False, ()

    def observe(self):
        return View(geometry=sizes, used=[self.used], rows=[self.row], counts=None, allocated=[len(self.row)])


once = (Reserve(0), Allocate(((0, 0),)), Free(0))
found = replay(Leaky, (*once, *once))
compare(
    "clause and step of the finding", ("CONS", 5), found and (found.clause, len(found.history))
)
