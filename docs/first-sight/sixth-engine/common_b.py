"""Shared helpers of the bug scripts: engines, and the verdict."""

import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from attrs import evolve
from spec.vocabulary import CleanupMode, Geometry, Limits, Params, Refused, Request, default_limits


def engine(geometry, *, model=None, weights=(), cleanup=CleanupMode.INCREMENTAL, logprobs=False,
           **limits):
    """An engine with the default limits, of which some are changed."""
    chosen = evolve(default_limits(geometry), **limits)
    setup = Setup(geometry=geometry, limits=chosen, model=model or IntegerModel(),
                  cleanup=cleanup, logprobs=logprobs)
    return Engine(setup, weights)


def attempt(call, *args, **named):
    """The result of a call, or the name of the error that it raises (with its reasons)."""
    try:
        return call(*args, **named)
    except Refused as error:
        return "Refused", tuple(sorted(reason.name for reason in error.reasons))
    except Exception as error:
        return type(error).__name__


def verdict(expected, seen):
    """Print both, and exit 1 where they differ."""
    print("expected", expected)
    print("seen    ", seen)
    sys.exit(0 if seen == expected else 1)
