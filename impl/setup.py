"""Everything about an engine that is fixed for its life, and static inside jit."""

from attrs import frozen

from impl.models.protocol import Model
from spec.vocabulary import CleanupMode, Geometry, Limits


@frozen(kw_only=True)
class Setup:
    """Hashable, so that one setup is one compilation of each entry point.

    logprobs: whether the log-probability of each generated token is kept.
    """

    geometry: Geometry
    limits: Limits
    model: Model
    cleanup: CleanupMode = CleanupMode.INCREMENTAL
    logprobs: bool = False

    def __attrs_post_init__(self) -> None:
        self.limits.check(self.geometry)

    @property
    def batch_seqs(self) -> int:
        """The most sequences one batch of `prefill_tokens` can hold."""
        return min(self.geometry.slots, self.limits.prefill_tokens)
