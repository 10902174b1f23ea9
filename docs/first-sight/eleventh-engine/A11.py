"""Request 0 keeps its reserved pages as long as it holds a slot."""
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


from impl.host import Host

host = Host(Engine(setup(pages=3, slots=2)))
host.submit(request(0, (5, 6), 6))  # 8 tokens: two pages of the three
host.admit()
host.submit(request(1, (5, 6), 6))  # two pages, and one is unreserved
judge(
    admit=(why(host.admit), {Reason.OUT_OF_PAGES}),
    admitted=([one.id for one in host.state.admitted], [0]),
    occupants=(host.stats().occupants, frozenset({(0, 0)})),
)
