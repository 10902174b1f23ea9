"""Shared helpers of the reproductions; values are worked out by hand in each script."""
import os, sys
os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
from impl.engine import Engine
from impl.host import Host, Stalled
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import (CleanupMode, FinishReason, Geometry, Limits, Params, Reason, Refused,
                             Request, default_limits)
from attrs import evolve


def engine(pages, page_size, slots, pages_per_seq, *, cleanup=CleanupMode.INCREMENTAL, **limits):
    g = Geometry(pages=pages, page_size=page_size, slots=slots, pages_per_seq=pages_per_seq)
    return Engine(Setup(geometry=g, limits=evolve(default_limits(g), **limits), cleanup=cleanup,
                        model=IntegerModel(), logprobs=True))


def req(id, prompt, max_new, n=1, **params):
    return Request(id=id, prompt=tuple(prompt), params=Params(max_new=max_new, **params), n_generations=n)


def why(call, *args, **kw):
    """The name of the reason of the refusal; None if the call is done."""
    try:
        call(*args, **kw)
    except Refused as error:
        return str(error).split(":")[0]
    return None


def check(seen, expected, what):
    if seen != expected:
        print(f"BUG: {what}: saw {seen!r}, expected {expected!r}")
        sys.exit(1)
