"""A traced function whose control flow can be followed: that of its kernels, one after another."""

from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen

from conformance.kernels.coverage.control_flow import kernel
from conformance.kernels.coverage.memory import Numbers
from conformance.kernels.coverage.scalars import Unknown
from conformance.kernels.coverage.sites import Outcome, Site, Watch
from conformance.kernels.operands import Kernels, Nested

SMALL: Final = 8
"""Numbers below it are met by any draw."""


@frozen
class Followed:
    """What one call does: the outcomes, and the number of scalar equations."""

    seen: frozenset[Outcome]
    work: int


class Program:
    """A traced function whose control flow can be followed."""

    def __init__(self, traced: Any) -> None:
        """traced: of `jax.make_jaxpr`. Raises Unknown if a kernel is not modelled."""
        try:
            self._given = Kernels(traced)
        except Nested as error:
            raise Unknown(str(error)) from None
        self._kernels = [
            kernel(params, name=f"{number} {params.get('name') or 'kernel'}")
            for number, params in enumerate(self._given.each)
        ]

    @property
    def sites(self) -> tuple[Site, ...]:
        """Those of every kernel."""
        return tuple(site for one in self._kernels for site in one.sites)

    @property
    def units(self) -> frozenset[int]:
        """The integers beside which the kernels compute, but for masks: sizes of their work."""
        every: frozenset[int] = frozenset().union(*(one.literals for one in self._kernels))
        return frozenset(one for one in every if one >= SMALL and one & (one + 1))

    @property
    def sizes(self) -> frozenset[int]:
        """The integers by which the kernels divide: of their steps, blocks and copies."""
        return frozenset().union(*(one.sizes for one in self._kernels))

    def follow(self, arrays: Sequence[Numbers | None]) -> Followed:
        """What happens with these arguments, None for those without integers. Raises Unknown."""
        watch, work = Watch(), 0
        for one, operands in zip(self._kernels, self._given.operands(arrays), strict=True):
            watch.last.clear()
            work += one.follow(operands, watch)
        return Followed(frozenset(watch.seen), work)
