"""The vocabulary of spec and engine: sizes, requests, reasons. `impl` may import this alone."""

from spec.vocabulary.capacity import STANDARD, Capacity
from spec.vocabulary.errors import InvalidInput, Reason, Refusal, Refused, refused
from spec.vocabulary.geometry import INVALID, LAG, Geometry, Limits, default_limits
from spec.vocabulary.request import (
    CleanupMode,
    FinishReason,
    Params,
    Request,
    ResetMode,
    Tokens,
)

__all__ = [
    "INVALID",
    "LAG",
    "STANDARD",
    "Capacity",
    "CleanupMode",
    "FinishReason",
    "Geometry",
    "InvalidInput",
    "Limits",
    "Params",
    "Reason",
    "Refusal",
    "Refused",
    "Request",
    "ResetMode",
    "Tokens",
    "default_limits",
    "refused",
]
