"""The peak rates of the chips, and the shares of them that a static cycle count allows.

A cycle count ignores how long copies take, and whether they overlap with computation: every share
here is a ceiling, and no measurement.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import frozen

from conformance.kernels.compile.grid import Cell

MXU_128: Final = 2 * 4 * 128 * 128
"""Operations in a cycle of four matrix units of 128 x 128, each of which takes a row."""
MXU_256: Final = 2 * 2 * 256 * 256 * 2
"""Of two of 256 x 256, each of which takes two rows. Both are what the compiler schedules for a
product of two large matrices of bfloat16, all units busy; documents give the units alone."""
TPU: Final[Mapping[str, str]] = MappingProxyType({"platform": "tpu"})


@frozen(kw_only=True)
class Peak:
    """One chip. topology: its name for ahead-of-time compilation, of the fewest devices.

    settings: further options for jax, such as that the cores of a chip are one device. bandwidth:
    bytes per second of a device. flops: bfloat16 operations per second of a core. per_cycle: such
    operations of a core in a cycle. cores: of a device.
    """

    topology: str
    settings: Mapping[str, str] = TPU
    bandwidth: float
    flops: float
    per_cycle: int
    cores: int

    @property
    def clock(self) -> float:
        """Cycles per second: derived, not verified."""
        return self.flops / self.per_cycle

    @property
    def bytes_per_cycle(self) -> float:
        """Bytes that memory delivers to a device in a cycle."""
        return self.bandwidth / self.clock


PEAKS: Final = {
    "v4": Peak(
        topology="v4:2x2x1",
        settings={**TPU, "chip_config_name": "megacore"},
        bandwidth=1.23e12,
        flops=1.375e14,
        per_cycle=MXU_128,
        cores=2,
    ),
    "v5e": Peak(topology="v5e:2x2", bandwidth=8.2e11, flops=1.97e14, per_cycle=MXU_128, cores=1),
    "v5p": Peak(
        topology="v5p:2x2x1", bandwidth=2.765e12, flops=2.295e14, per_cycle=MXU_128, cores=2
    ),
    "v6e": Peak(topology="v6e:2x2", bandwidth=1.64e12, flops=9.2e14, per_cycle=MXU_256, cores=1),
    "7x": Peak(
        topology="tpu7x:2x2x1", bandwidth=3.7e12, flops=1.155e15, per_cycle=MXU_256, cores=1
    ),
}
"""Operations and bandwidth as jax has them (`jax.experimental.pallas.tpu.get_tpu_info`, for chips
halved to cores), but for the bandwidth of v5p, of which Google's page says 2,765 GB/s: more than
jax, and more bandwidth makes for a lower ceiling.

Assumed: on v4 and v5p a device is a chip, and its two cores share its bandwidth; a kernel works on
both if its grid has a parallel axis, and on one otherwise, with shares that are of the whole chip.
On 7x a device is one of two cores and has half of the bandwidth of the chip.
"""
ASSUMPTIONS: Final = (
    "ceilings ignore how long copies take; clocks are derived from published peaks, not verified; "
    "on v4 and v5p shares are of both cores of a device, and a kernel that is split works on both; "
    "on 7x a device is one core with half of the chip's bandwidth"
)


def mbu_ceiling(cell: Cell, cycles_per_token: float, *, cores: int = 1) -> float:
    """The bandwidth share that decoding can reach, if a KV token costs only its cycles.

    cores: how many take tokens in parallel.
    """
    streamed = cell.kv_bytes / PEAKS[cell.chip].bytes_per_cycle
    return streamed / max(streamed, cycles_per_token / cores)


def mfu_ceiling(cell: Cell, *, cycles: int, tokens: int, kv_tokens: int, cores: int = 1) -> float:
    """The share of the bfloat16 peak; a prefill step has only its products with K and with V.

    cycles: of a step, for all heads. tokens, kv_tokens: queries and cells of a step. cores: how
    many do such steps in parallel.
    """
    operations = 4 * tokens * kv_tokens * cell.heads.q * cell.heads.dim
    peak = PEAKS[cell.chip]
    return operations * cores / (cycles * peak.per_cycle * peak.cores)
