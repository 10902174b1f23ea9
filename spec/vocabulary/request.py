"""What a caller asks for, and how the engine is told to tidy up."""

import math
from enum import Enum

from attrs import field, frozen

from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INT32_MAX, Geometry

Tokens = tuple[int, ...]


class CleanupMode(Enum):
    """When finished sequences are released (seed 001, M4)."""

    NONE = "none"
    END = "end"
    INCREMENTAL = "incremental"


class ResetMode(Enum):
    """Whether a reset also zeroes the pool (seed 000, section 10.2)."""

    LOGICAL = "logical"
    PHYSICAL = "physical"


class FinishReason(Enum):
    """Why a sequence ended. If both hold, the reason is STOP."""

    LIMIT = "limit"
    STOP = "stop"


def require_tokens(name: str, tokens: Tokens) -> None:
    """Raise InvalidInput unless `tokens` is a non-empty tuple of token ids."""
    whole = type(tokens) is tuple and all(type(token) is int for token in tokens)
    if not whole or not tokens or not all(0 <= token <= INT32_MAX for token in tokens):
        raise InvalidInput(
            name,
            seen=tokens,
            allowed="a non-empty tuple of integers from 0 to 2**31 - 1",
            remedy="Pass token ids.",
        )


def _require_integer(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise InvalidInput(
            name,
            seen=value,
            allowed=f"an integer from {low} to {high}",
            remedy="Pass an integer in this range.",
        )


def _require_temperature(value: object) -> None:
    if type(value) is bool or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidInput(
            "Params.temperature",
            seen=value,
            allowed="a finite number, 0 or more",
            remedy="Use 0 for greedy decoding.",
        )


@frozen(kw_only=True)
class Params:
    """How one request is sampled and when it stops.

    max_new: generated tokens at most. stops: sequences matched against generated tokens only.
    temperature: 0 is greedy. seed: of this request's draws.
    """

    max_new: int
    stops: tuple[Tokens, ...] = ()
    temperature: float = 0.0
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        _require_integer("Params.max_new", self.max_new, 1, INT32_MAX)
        _require_integer("Params.seed", self.seed, 0, INT32_MAX)
        if type(self.stops) is not tuple:
            raise InvalidInput(
                "Params.stops",
                seen=self.stops,
                allowed="a tuple of token tuples",
                remedy="Pass (), or one tuple of token ids per stop sequence.",
            )
        for stop in self.stops:
            require_tokens("Params.stops", stop)
        _require_temperature(self.temperature)


@frozen(kw_only=True)
class Request:
    """One prompt to be continued `n_generations` times. `id` names it in the outputs."""

    id: int
    prompt: Tokens
    params: Params
    n_generations: int = field(default=1)

    def __attrs_post_init__(self) -> None:
        _require_integer("Request.id", self.id, 0, INT32_MAX)
        require_tokens("Request.prompt", self.prompt)
        _require_integer("Request.n_generations", self.n_generations, 1, INT32_MAX)

    def pages_needed(self, geometry: Geometry) -> int:
        """Pages this request holds in the worst case: shared full pages once, the rest per choice.

        Source: seed 001, M5.1 (the sizing formula), sharpened for shared prefixes.
        """
        shared = len(self.prompt) // geometry.page_size
        whole = geometry.pages_for(len(self.prompt) + self.params.max_new)
        return shared + self.n_generations * (whole - shared)
