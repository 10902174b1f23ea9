"""Types of what Pallas gives to a kernel, for which jax has no public ones."""

from typing import Any, Protocol

Ref = Any
"""A reference to memory: it is indexed, and has a shape and a dtype."""


class Copy(Protocol):
    """An asynchronous copy."""

    def start(self) -> None:
        """Begin to copy."""
        ...

    def wait(self) -> None:
        """Wait until everything is copied."""
        ...
