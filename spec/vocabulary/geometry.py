"""The sizes that everything is built for: fixed for the life of an engine, static inside jit."""

from typing import Final

from attrs import Attribute, field, frozen

from spec.vocabulary.errors import InvalidInput

INT32_MAX: Final = 2**31 - 1
INVALID: Final = INT32_MAX
"""Stands for "no page", "no slot" and "no destination" in arrays: out of range on either side.

A negative sentinel would wrap around to the last page when used as an index.
"""


def _positive(instance: object, attribute: "Attribute[int]", value: object) -> None:
    if type(value) is not int or not 0 < value <= INT32_MAX:
        raise InvalidInput(
            f"{type(instance).__name__}.{attribute.name}",
            seen=value,
            allowed="an integer from 1 to 2**31 - 1",
            remedy="Give a positive size.",
        )


def _size(default: int | None = None) -> int:
    if default is None:
        return field(validator=_positive)
    return field(default=default, validator=_positive)


@frozen(kw_only=True)
class Geometry:
    """The pool and the table.

    pages: pages in the pool. page_size: cells (token positions) in a page. slots: local sequence
    slots. pages_per_seq: entries in a table row. Source: seed 000, sections 2 and 3.
    """

    pages: int = _size()
    page_size: int = _size()
    slots: int = _size()
    pages_per_seq: int = _size()

    def __attrs_post_init__(self) -> None:
        for name, what in (("pages", "a destination"), ("pages_per_seq", "a position")):
            count = getattr(self, name)
            if count * self.page_size > INT32_MAX:
                raise InvalidInput(
                    f"Geometry.{name}",
                    seen=f"{count} pages of {self.page_size}",
                    allowed=f"{name} * page_size below 2**31, so that {what} is an int32",
                    remedy="Use fewer or smaller pages.",
                )

    @property
    def max_len(self) -> int:
        """The most positions one sequence can have."""
        return self.page_size * self.pages_per_seq

    def pages_for(self, positions: int) -> int:
        """Pages that cover this many positions, the last perhaps in part."""
        return -(-positions // self.page_size)


@frozen(kw_only=True)
class Limits:
    """Static widths of everything that is batched, queued or buffered.

    queue: queue entries, at least one per slot. prefill_tokens: tokens in one batch or prefill.
    prefill_seqs: prompts in one prefill. round_tokens: tokens in one decode round. rounds: rounds
    in one call of the loop. stops and stop_len: stop sequences per request and tokens in each.
    outputs: finished outputs held until they are taken.
    """

    queue: int = _size()
    prefill_tokens: int = _size()
    prefill_seqs: int = _size()
    round_tokens: int = _size()
    rounds: int = _size()
    stops: int = _size()
    stop_len: int = _size()
    outputs: int = _size()

    def check(self, geometry: Geometry) -> None:
        """Raise InvalidInput unless these limits can serve this geometry."""
        for name, need, why in (
            ("queue", geometry.slots, "one entry per slot: a round never meets a full queue"),
            ("outputs", geometry.slots, "one output per slot: one round can finish all"),
        ):
            if getattr(self, name) < need:
                raise InvalidInput(
                    f"Limits.{name}",
                    seen=getattr(self, name),
                    allowed=f"at least {need}: {why}",
                    remedy="Raise the limit or use fewer slots.",
                )


def default_limits(geometry: Geometry) -> Limits:
    """Limits that let every slot decode in each round and the longest prompt prefill at once."""
    return Limits(
        queue=2 * geometry.slots,
        prefill_tokens=max(geometry.max_len, 2 * geometry.slots),
        prefill_seqs=geometry.slots,
        round_tokens=geometry.slots,
        rounds=8,
        stops=2,
        stop_len=4,
        outputs=2 * geometry.slots,
    )
