"""Kernels to put to the bench: one that is right, and some that are not. Nothing here is Pallas."""

import os
import time
from typing import Any

import numpy as np

from conformance import oracle

CALLS: list[None] = []


def right(*arrays: Any, scale: float = 1.0, sliding_window: int | None = None) -> Any:
    """The oracle itself, in float32."""
    known: Any = [np.asarray(array, np.float64) for array in arrays[:2]]
    known += [np.asarray(array) for array in arrays[2:]]
    out = oracle.ragged_paged_attention(*known, scale=scale, sliding_window=sliding_window)
    return out.astype(np.float32)


def window_too_long(*arrays: Any, scale: float = 1.0, sliding_window: int | None = None) -> Any:
    """One position more than the window has."""
    wider = None if sliding_window is None else sliding_window + 1
    return right(*arrays, scale=scale, sliding_window=wider)


def deaf(*arrays: Any, scale: float = 1.0) -> Any:
    """Hangs at the third call."""
    CALLS.append(None)
    while len(CALLS) == 3:
        time.sleep(1)
    return right(*arrays, scale=scale)


def mortal(*arrays: Any, scale: float = 1.0) -> Any:
    """Takes the process along at the third call."""
    CALLS.append(None)
    if len(CALLS) == 3:
        os._exit(7)
    return right(*arrays, scale=scale)


def choosy(*_arrays: Any, **_options: Any) -> Any:
    """Takes nothing."""
    raise NotImplementedError("no such head_dim")
