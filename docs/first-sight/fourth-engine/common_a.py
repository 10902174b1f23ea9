"""Helpers: an engine of ours with everything observed, and a comparison that ends the script."""

import sys

from conformance.engines.ours import make
from spec.machines import actions as act  # noqa: F401
from spec.vocabulary import CleanupMode, Geometry, Params, Refused, Request, ResetMode, default_limits  # noqa: F401


def engine(pages=8, page_size=4, slots=3, pages_per_seq=4, cleanup=CleanupMode.INCREMENTAL, **limits):
    from attrs import evolve

    geometry = Geometry(pages=pages, page_size=page_size, slots=slots, pages_per_seq=pages_per_seq)
    return make(geometry, evolve(default_limits(geometry), **limits), cleanup)


def cells(slot, *positions):
    return tuple((slot, position) for position in positions)


def do(one, *actions):
    """Take actions that must all be done; the result of the last."""
    result = None
    for action in actions:
        result = one.apply(action)
    return result


def reasons(one, action):
    """The names of the reasons of a refusal, or () if the action is done."""
    try:
        one.apply(action)
    except Refused as error:
        return tuple(sorted(reason.name for reason in error.reasons))
    return ()


def end(expected, seen):
    print("expected", expected)
    print("seen    ", seen)
    sys.exit(0 if expected == seen else 1)


def row(one, slot):
    """The pages of a slot, without the empty entries."""
    return tuple(page for page in one.observe().rows[slot] if page < 2**31 - 1)
