"""Attention of one query and one head, on plain floats: its read set, and its result in two forms.

A query at position p of a sequence reads the cells `visible(p, kv_len, window)`, in order, and no
other. `naive` defines the result; `online` shows that a kernel may compute it in one pass over
tiles (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; docs/sources.md,
"Tiled attention" and "Online softmax"). Both take the cells of the read set alone, so no other cell
can influence the result.

A query head may have a sink (docs/sources.md, "Attention sinks"): one more score, which takes part
in the sum of the weights and has no value. Neither scale nor soft cap applies to it. A sink of -inf
has weight 0, which is that of no sink. A query that reads nothing gives zeros, with a sink too. A
sink of inf or NaN makes every other result NaN.
"""

import math
from collections.abc import Sequence
from typing import Final

from spec.vocabulary.errors import InvalidInput

Vector = Sequence[float]
NO_SINK: Final = -math.inf
"""The sink of a query head that has none: its weight is 0."""


def visible(query_position: int, kv_len: int, window: int | None = None) -> range:
    """The positions that a query reads: causal, below `kv_len`, and within the window if any.

    With a window of w the query sees itself and the w - 1 positions before it. A query at a
    negative position reads nothing. Raises InvalidInput for a window that is no integer, 1 or more.
    Source: docs/sources.md, "Masking of stale cells".
    """
    if window is not None and (type(window) is not int or window < 1):
        raise InvalidInput(
            "window",
            seen=window,
            allowed="an integer, 1 or more, or None",
            remedy="Use None for no window.",
        )
    first = 0 if window is None else max(0, query_position - window + 1)
    return range(first, min(query_position + 1, kv_len))


def score(q: Vector, key: Vector, *, scale: float, soft_cap: float | None = None) -> float:
    """The score of a query and a key, before softmax; `soft_cap` bounds its magnitude."""
    raw = scale * sum(a * b for a, b in zip(q, key, strict=True))
    return raw if soft_cap is None else soft_cap * math.tanh(raw / soft_cap)


def naive(
    q: Vector,
    keys: Sequence[Vector],
    values: Sequence[Vector],
    *,
    scale: float,
    soft_cap: float | None = None,
    sink: float = NO_SINK,
) -> list[float]:
    """The mean of `values`, weighted by the softmax of the scores; zeros for an empty read set.

    q [head_dim]; keys and values [cells][head_dim], the read set alone. With a sink the weights
    add up to less than 1.
    """
    scores = [score(q, key, scale=scale, soft_cap=soft_cap) for key in keys]
    if not scores:
        return [0.0] * len(q)
    largest = max(*scores, sink)
    weights = [math.exp(x - largest) for x in scores]
    total = sum(weights) + math.exp(sink - largest)
    return [
        sum(w * v for w, v in zip(weights, column, strict=True)) / total
        for column in zip(*values, strict=True)
    ]


def online(
    q: Vector,
    keys: Sequence[Vector],
    values: Sequence[Vector],
    *,
    tile: int,
    scale: float,
    soft_cap: float | None = None,
    sink: float = NO_SINK,
) -> list[float]:
    """The same as `naive` in real arithmetic, reading each tile of cells once.

    The largest score so far is carried from tile to tile, with the sum of the weights and the
    accumulator relative to it. When the maximum grows, both are rescaled by exp(old - new). The
    sink comes last, and rescales them in the same way. Raises InvalidInput for a tile below 1.
    """
    if tile < 1:
        raise InvalidInput("tile", seen=tile, allowed="1 or more", remedy="Give a positive tile.")
    largest, total, accumulator = -math.inf, 0.0, [0.0] * len(q)
    for start in range(0, len(keys), tile):
        cells = range(start, min(start + tile, len(keys)))
        scores = {cell: score(q, keys[cell], scale=scale, soft_cap=soft_cap) for cell in cells}
        new = max(largest, *scores.values())
        # exp(-inf) is 0: before the first tile there is nothing to rescale.
        rescale = math.exp(largest - new)
        weights = {cell: math.exp(x - new) for cell, x in scores.items()}
        total = total * rescale + sum(weights.values())
        accumulator = [
            old * rescale + sum(weights[cell] * values[cell][d] for cell in cells)
            for d, old in enumerate(accumulator)
        ]
        largest = new
    if not keys:
        return accumulator
    new = max(largest, sink)
    rescale = math.exp(largest - new)
    total = total * rescale + math.exp(sink - new)
    return [x * rescale / total for x in accumulator]
