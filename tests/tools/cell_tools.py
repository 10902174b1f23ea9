"""A cell of the grid and the record of its compilation, for tests."""

from typing import Final

from conformance.kernels.compile.grid import Cell, Heads
from conformance.kernels.compile.loops import Pass
from conformance.kernels.compile.outcome import Compiled

EIGHT_BILLION: Final = Cell(heads=Heads(32, 8, 128), page_size=128, chip="v6e")


GOOD: Final = Compiled(
    kernel="tpu",
    cell=EIGHT_BILLION,
    verdict="ok",
    vmem=1000,
    spilled=10,
    capacity=2000,
    smem=64,
    decode=Pass(400, 200, 1),
    prefill=Pass(9000, 512, 128),
    versions={"jax": "0.10", "libtpu": "1"},
)
