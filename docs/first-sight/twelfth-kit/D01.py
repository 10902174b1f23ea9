"""An engine that takes any free page, shows neither counts nor cells, and gives one page to two prompts.

Prompts of whole pages, of other texts. By hand: 2 prompts of 2 tokens, pages of 2 cells, and no text
is shared, so that the two rows must name two pages. The right engine names pages 1 and 0. The other
takes the second prompt for the first (a wrong hit of a prefix cache): both rows name page 1.
"""
import sys

from attrs import evolve

from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.protocol import Profile
from common import SpecEngine, geometry
from spec import view
from spec.machines.actions import Free, Prefill, Round, TakeOutputs
from spec.vocabulary import CleanupMode, INVALID, Params, Request, default_limits


class Right(SpecEngine):
    """The specification with its pages renamed, which shows neither counts nor cells."""

    names = {0: 1, 1: 0}

    def observe(self):
        shown = view.of(self.m, self.s)
        rows = tuple(
            tuple(page if page == INVALID else self.names.get(page, page) for page in row)
            for row in shown.rows
        )
        return evolve(shown, rows=rows, counts=None, cells=None)


class Hit(Right):
    """It gives the page of the first prompt to the second one too."""

    names = {0: 1, 1: 1}


def blamed(kind, steps):
    sizes = geometry()
    profile = Profile(
        name=kind.__name__, geometry=sizes, limits=default_limits(sizes), policy="any",
        cleanup=CleanupMode.NONE, actions={Prefill, Round, Free, TakeOutputs},
    )
    engine = Lockstep(kind(profile))
    try:
        for step in steps:
            assert not engine.do(step)
    except Violation as found:
        return str(found).splitlines()[0]
    return None


first, second = (Request(id=n, prompt=(n, n), params=Params(max_new=2)) for n in (3, 4))
together, apart = [Prefill((first, second))], [Prefill((first,)), Prefill((second,))]
wrong = 0
for kind, steps, expected in (
    (Right, together, False), (Right, apart, False), (Hit, together, True), (Hit, apart, True),
):
    found = blamed(kind, [*steps, Round()])
    print(kind.__name__, "in one prefill" if steps is together else "in two", "->", found)
    wrong += (found is not None) is not expected
sys.exit(1 if wrong else 0)
