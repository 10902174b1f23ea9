"""Helpers: an engine of the exact integer model, short histories, and the verdict of a script."""

import sys

from conformance.engines.ours import make
from spec.machines import actions as act
from spec.vocabulary import CleanupMode, Geometry, Limits, Params, Refused, Request, ResetMode, default_limits

__all__ = ("act", "CleanupMode", "Geometry", "Limits", "Params", "Refused", "Request", "ResetMode",
           "begin", "cells", "compare", "default_limits", "engine", "reasons", "span")


def engine(geometry, limits=None, cleanup=CleanupMode.INCREMENTAL):
    """Our engine, behind its adapter."""
    return make(geometry, limits or default_limits(geometry), cleanup)


def span(slot, start, stop):
    """The batch of a slot's positions from start up to stop."""
    return tuple((slot, position) for position in range(start, stop))


def begin(ours, slot, prompt, params, request):
    """Reserve, assign, allocate and write a prompt, and queue nothing."""
    ours.apply(act.Reserve(slot))
    ours.apply(act.Assign(slot, prompt, params, request=request))
    ours.apply(act.Allocate(span(slot, 0, len(prompt))))
    ours.apply(act.Write(span(slot, 0, len(prompt))))


def cells(ours, slot, count):
    """The first `count` cells of a slot, read through its row."""
    seen = ours.observe()
    size = seen.geometry.page_size
    return [seen.cells[seen.rows[slot][at // size] * size + at % size] for at in range(count)]


def reasons(ours, action):
    """Apply an action: the names of the reasons of its refusal, or none."""
    try:
        ours.apply(action)
    except Refused as error:
        return sorted(reason.name for reason in error.reasons)
    return []


def compare(expected, seen):
    """Print both, and end with status 1 if they differ."""
    print("expected:", expected)
    print("seen:    ", seen)
    sys.exit(int(expected != seen))
