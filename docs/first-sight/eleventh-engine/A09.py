"""A refused clone changes nothing, the queue included."""
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


engine = Engine(setup(pages=6, slots=3))
engine.prefill([request(1, (5, 6, 7), 3)])  # one token is drawn, and queued
refused = why(engine.clone, 0, choice=0)
queued = engine.stats().queued
done = engine.generate()  # two more tokens are drawn, one in each round
judge(
    refused=(refused, {Reason.CHOICE_TAKEN}),
    queued=(queued, 1),
    generated=(done, (2, Reason.QUEUE_EMPTY)),
    outputs=([(one.request, one.choice, len(one.tokens)) for one in engine.take_outputs()], [(1, 0, 3)]),
    queued_at_the_end=(engine.stats().queued, 0),
)
