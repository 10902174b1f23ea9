"""A batch is refused as SLOT_FINISHED only for a slot that is in it."""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import CleanupMode, Geometry, Params, Reason, Refused, Request, default_limits


def setup(pages, slots, cleanup=CleanupMode.INCREMENTAL):
    geometry = Geometry(pages=pages, page_size=4, slots=slots, pages_per_seq=2)
    return Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel(), cleanup=cleanup)


def why(call, *args, **named):
    """The reasons for which a call is refused; empty if it is done."""
    try:
        call(*args, **named)
    except Refused as error:
        return set(error.reasons)
    return set()


def request(id, prompt, max_new):
    return Request(id=id, prompt=prompt, params=Params(max_new=max_new))


def judge(**pairs):
    """Each pair: what was seen, and what the specification says."""
    wrong = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    for name, (seen, right) in wrong.items():
        print(f"{name}: {seen}, should be {right}")
    sys.exit(1 if wrong else 0)


engine = Engine(setup(pages=6, slots=3, cleanup=CleanupMode.NONE))
engine.prefill([request(1, (5, 6), 3), request(2, (5, 6), 3), request(3, (5, 6), 1)])
assert len(engine.take_outputs()) == 1  # the one in slot 2
judge(
    allocate=(why(engine.allocate, [(0, 2)]), set()),
    purge=(why(engine.purge, 0), set()),  # a token that is queued is not written by hand
    write=(why(engine.write, [(0, 2)]), set()),
    finished=(why(engine.allocate, [(2, 2)]), {Reason.SLOT_FINISHED}),
)
