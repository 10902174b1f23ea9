"""The cost of one call, as it is kept with the grid point whose program serves it."""

from typing import TypedDict

from attrs import asdict, frozen


class CostData(TypedDict):
    """A `Cost` as plain data."""

    call: str
    issued: float
    streamed: float
    awaited: float
    late: float
    moved: int
    copies: int
    why: str


@frozen(kw_only=True)
class Cost:
    """Cycles of one call of a kernel, all of its programs together.

    issued: bundles, without waiting. streamed: what its bytes take at the published bandwidth.
    awaited: bundles and waits for copies at that bandwidth, without latency. late: with the assumed
    latency. moved: bytes between main memory and the chip. copies: how many are started. why: the
    reason if nothing is known.
    """

    call: str
    issued: float = 0.0
    streamed: float = 0.0
    awaited: float = 0.0
    late: float = 0.0
    moved: int = 0
    copies: int = 0
    why: str = ""

    def as_dict(self) -> CostData:
        """Plain data for JSON."""
        data: CostData = asdict(self)  # type: ignore[assignment]
        return data
