"""What a cell should hold is a matter of one engine: it must not change while that engine lives, and
the next engine of the same process, of other sizes or weights, may have other contents. Here both
engines are right, so neither has a finding in a process of its own.
"""
from common import *


class Salted(SpecEngine):
    """The specification, whose contents depend on the page size too."""

    def observe(self):
        shown, salt = super().observe(), self.profile.geometry.page_size
        cells = tuple((salt, str(cell)) for cell in shown.cells)
        return evolve(shown, cells=cells, expected=lambda prefix: (salt, str(shown.expected(prefix))))


def make(g, limits, cleanup):
    return Salted(profile(g=g, cleanup=cleanup))


if __name__ == "__main__":
    from functools import partial

    from conformance.isolation.remote import RemoteFactory
    from conformance.lockstep.run import replay

    factory = RemoteFactory("D05:make", python=None)
    prompt = act.Assign(0, (5, 6), Params(max_new=1), 1, 0)
    for size in (2, 4):
        g = geometry(page_size=size)
        one = partial(factory, g, default_limits(g), CleanupMode.INCREMENTAL)
        found = replay(one, (act.Reserve(0), prompt, *written(0, 2)), serve=False)
        seen(f"the finding at page size {size}", found and f"{found.clause}: {found.message}", None)
