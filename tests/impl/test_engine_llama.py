"""A real model through engine and host: neither limits, company nor dead cells change a token."""

from typing import cast

import numpy as np
import pytest
from attrs import evolve
from engine_tools import with_cache

from conformance.numerics.llama import REQUESTS, SETUP, drawn_weights
from impl.engine import Engine, Key, Output
from impl.host import Host
from impl.models.llama import LlamaWeights
from impl.models.protocol import Cache

NARROW = evolve(SETUP, limits=evolve(SETUP.limits, prefill_seqs=1, round_tokens=1, rounds=3))


@pytest.fixture(scope="module")
def weights() -> LlamaWeights:
    """Random weights, the same for every test."""
    return drawn_weights(1)


@pytest.fixture(scope="module")
def served(weights: LlamaWeights) -> dict[Key, Output]:
    """All requests served together by the wide setup."""
    return Host(Engine(SETUP, weights)).generate(REQUESTS)


@pytest.mark.deep
def test_limits_and_company_do_not_change_the_tokens(
    weights: LlamaWeights, served: dict[Key, Output]
) -> None:
    """Tokens are the same with one prompt and one token at a time, and for each request alone."""
    narrow = Host(Engine(NARROW, weights)).generate(REQUESTS)
    alone: dict[Key, Output] = {}
    for one in REQUESTS[1:3]:
        alone |= Host(Engine(SETUP, weights)).generate([one])

    assert texts(served) == texts(narrow)
    assert alone.keys() < served.keys()
    assert texts(alone) == {key: texts(served)[key] for key in alone}


def test_what_dead_cells_hold_does_not_matter(
    weights: LlamaWeights, served: dict[Key, Output]
) -> None:
    """NaN in all dead cells before each call changes no bit of tokens or log-probabilities."""
    expected = serve(Engine(SETUP, weights), poisoned=False)

    assert expected == serve(Engine(SETUP, weights), poisoned=True)
    assert texts(served) == texts(expected)


def serve(engine: Engine, *, poisoned: bool) -> dict[Key, Output]:
    """Serve REQUESTS, admitting only when no token is queued. poisoned: poison before each call."""
    host, outputs = Host(engine), dict[Key, Output]()
    for one in REQUESTS:
        host.submit(one)
    while host.state.waiting or host.stats().queued:
        if poisoned:
            poison(engine)
        if host.stats().queued:
            host.generate_rounds()
        else:
            host.admit()
        outputs |= {(one.request, one.choice): one for one in host.take_outputs()}
    return outputs


def poison(engine: Engine) -> None:
    """Put NaN in every cell that is not a written cell of a used slot."""
    held = engine.extract()
    size = SETUP.geometry.page_size
    alive = np.zeros((SETUP.geometry.pages, size), bool)
    for slot in np.flatnonzero(held.slots.used):
        for position in range(int(held.slots.written[slot])):
            alive[int(held.pages.rows[slot][position // size]), position % size] = True
    pools = [np.where(alive[:, :, None, None], pool, np.nan) for pool in held.pages.cache]
    engine.inject(with_cache(held, cast(Cache, tuple(pools))))


def texts(outputs: dict[Key, Output]) -> dict[Key, tuple[int, ...]]:
    """Tokens by (id, choice)."""
    return {key: output.tokens for key, output in outputs.items()}
