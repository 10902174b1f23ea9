"""An allocation in a reserved slot that has no prompt yet is refused.

docs/actions.md, Allocate: its reasons are BATCH_WIDTH, SLOT_RANGE, SLOT_UNUSED, SLOT_FINISHED,
BATCH_POSITIONS, TOO_LONG and OUT_OF_PAGES, and "the tokens of these positions need not be known yet".
SLOT_EMPTY is none of them (Write has it). So Reserve(0), Allocate(((0, 0),)) is done in an empty
engine, and slot 0 has one allocated cell in page 0.
"""

from common_c import answer, engine_of, go, judge, reasons

from spec import ladder
from spec.machines.actions import Allocate, Reserve
from spec.vocabulary import Geometry, default_limits

geometry = Geometry(pages=4, page_size=4, slots=2, pages_per_seq=2)
machine = ladder.machine("admission", "rollback")
state = go(machine, machine.initial(geometry, default_limits(geometry)), Reserve(0))
engine = engine_of(geometry)
engine.apply(Reserve(0))
one = Allocate(((0, 0),))
judge(
    ("the specification refuses Allocate for", [], reasons(machine, state, one)),
    ("the engine refuses Allocate for", [], answer(engine, one)),
    ("allocated in the engine", (1, 0), engine.observe().allocated),
)
