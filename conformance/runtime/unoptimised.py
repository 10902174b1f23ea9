"""Compilation without optimisation, for code that takes longer to compile than it runs."""

from collections.abc import Mapping
from functools import cache
from typing import Final

OPTIONS: Final[Mapping[str, int | bool]] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
}
"""Options of XLA that shorten a compilation; the second is for CPUs alone."""


def flags() -> tuple[str, ...]:
    """OPTIONS as words of XLA_FLAGS. XLA ends the process at one that it does not know."""
    return tuple(f"--{name}={value}".lower() for name, value in OPTIONS.items())


@cache
def compiler_options() -> dict[str, int | bool]:
    """Those of OPTIONS that the installed XLA knows, for `jax.jit`."""
    return {name: value for name, value in OPTIONS.items() if _is_known({name: value})}


def _is_known(option: dict[str, int | bool]) -> bool:
    import jax

    try:
        jax.jit(lambda: 0, compiler_options=option)()
    except (jax.errors.JaxRuntimeError, ValueError):
        return False
    return True
