"""The extras of kvspec that install optional dependencies."""

from typing import Final

EXTRAS: Final = {
    "jax": "jax",
    "jaxlib": "jax",
    "jaxtyping": "jax",
    "numpy": "jax",
    "libtpu": "tpu",
    "crosshair": "dev",
    "mypy": "dev",
    "pytest": "dev",
}
"""From a top-level module to the extra."""


def extra_of(error: BaseException) -> str | None:
    """The extra that installs the module that was not found; None if none does."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    return EXTRAS.get(error.name.partition(".")[0])
