"""A negative page to take is accepted if the page that it counts from the end is free.

By hand: 3 pages, all free. An allocation of one cell takes one page; -1 is no page from 0 to 2, so
InvalidInput. Page 3 is none either. Page 2 is one.
"""
from common_b import attempt, verdict
from spec import ladder
from spec.machines.actions import Allocate, Reserve
from spec.vocabulary import Geometry, default_limits

G = Geometry(pages=3, page_size=2, slots=1, pages_per_seq=2)
machine = ladder.machine("pages")
state = machine.step(machine.initial(G, default_limits(G)), Reserve(0))
def row(page):
    found = attempt(machine.step, state, Allocate(((0, 0),)), (page,))
    return found if isinstance(found, str) else found.sequences[0].row
verdict(("InvalidInput", "InvalidInput", (2,)), (row(-1), row(3), row(2)))
