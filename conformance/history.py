"""What a history is made of: the specification's actions, and what the harness does in between."""

from attrs import frozen

from conformance.protocol import Action, Poison


@frozen
class PoisonDead:
    """The harness overwrites the dead cells."""

    kind: Poison


@frozen
class Attend:
    """The harness drives the attention once for every slot and recovers what it read."""


Step = Action | PoisonDead | Attend
History = tuple[Step, ...]
