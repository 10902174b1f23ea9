"""The methods that judge mutants of our engine, by name.

The budget of each is that of a user: fuzzing has 60 seconds, and the others run to their ends.
"""

from collections.abc import Callable, Mapping
from typing import Final

from conformance.lockstep.watchdog import Watchdog
from conformance.mutation.judges import fuzz, gates, kernel, replay, served, vectors

SERVED: Final = "served"
"""The method that serves requests with small Llamas."""
GATES: Final = "gates"
"""The method that needs the compilers of TPUs, and an environment of its own for them."""
Judge = Callable[[Watchdog], str | None]
"""Runs the engine as it is; returns what it has found: a clause or an exception; None: nothing."""
METHODS: Final[Mapping[str, Judge]] = {
    "fuzz": fuzz.judge,
    "vectors": vectors.judge,
    "replay": replay.judge,
    SERVED: served.judge,
    "kernel reference": kernel.judge_reference,
    "kernel tpu": kernel.judge_tpu,
    GATES: gates.judge,
}
KERNELS: Final = tuple(name for name in METHODS if name.startswith("kernel"))
"""The methods that judge a kernel by itself."""
RAISING: Final = (*KERNELS, SERVED)
"""The methods that trace what no entry point of TRACE does: a mutant that raises there is in no
sample."""
