"""The setup of an engine: all that is fixed for its life, and static inside jit."""

from collections.abc import Hashable
from typing import Any, Final

from attrs import field, frozen

from impl.models.protocol import Model
from spec.vocabulary import CleanupMode, Geometry, Limits
from spec.vocabulary.rules import Rule, a


def _is_model(value: Any) -> bool:
    made = isinstance(value, Model) and not isinstance(value, type)
    if not made or not isinstance(value, Hashable):
        return False
    try:
        hash(value)
    except TypeError:  # a frozen class with a list in it
        return False
    return True


MODEL: Final = Rule(
    _is_model,
    "a hashable object with the methods of impl.models.protocol.Model",
    "Pass a configuration, such as Llama(...) or IntegerModel().",
)


@frozen(kw_only=True)
class Setup:
    """The setup of an engine; hashable, so that each entry point is compiled once per setup.

    logprobs: whether the log-probability of each generated token is kept.
    """

    geometry: Geometry = field(validator=a(Geometry))
    limits: Limits = field(validator=a(Limits))
    model: Model = field(validator=MODEL)
    cleanup: CleanupMode = field(default=CleanupMode.INCREMENTAL, validator=a(CleanupMode))
    logprobs: bool = field(default=False, validator=a(bool))

    def __attrs_post_init__(self) -> None:
        self.limits.check(self.geometry)

    @property
    def batch_seqs(self) -> int:
        """The most sequences one batch of `prefill_tokens` can hold."""
        return min(self.geometry.slots, self.limits.prefill_tokens)
