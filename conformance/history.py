"""The steps of a history: the specification's actions, and steps of the harness in between."""

from attrs import frozen

from conformance.protocol import Action, Poison


@frozen
class PoisonDead:
    """The harness overwrites the dead cells."""

    kind: Poison


@frozen
class Attend:
    """The harness runs attention once for every slot and recovers the cells that it read."""


Step = Action | PoisonDead | Attend
History = tuple[Step, ...]
