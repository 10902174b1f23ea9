"""An empty stop sequence is accepted.

docs/actions.md, Params: `stops` is "a tuple of non-empty tuples of integers"; a value that no state
could accept raises InvalidInput when it is made (spec.machines.actions). `()` is an empty tuple, so
Params with it among the stops raise InvalidInput, alone or beside a right one.
"""

from common_c import report

from spec.vocabulary import InvalidInput, Params


def outcome(stops):
    try:
        Params(max_new=2, stops=stops)
    except InvalidInput as error:
        return error.name
    return "accepted"


report(
    ("an empty stop sequence", "Params.stops", outcome(((),))),
    ("beside another", "Params.stops", outcome(((7,), ()))),
    ("right ones", "accepted", outcome(((7,), (8, 9)))),
    ("none", "accepted", outcome(())),
)
