"""The targets for whole calls, as lines of the comparison."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from attrs import evolve, frozen

from conformance.kernels import cost_figures
from conformance.kernels.comparison_row import (
    KERNELS,
    Held,
    Judged,
    Records,
    Row,
    known,
    name,
    one_of,
)
from conformance.kernels.compile import calls
from conformance.kernels.compile.grid import Cell, Heads, cells
from conformance.kernels.compile.outcome import Compiled

RIVAL: Final = "tpu-inference"
"""The kernel that ours is to exceed."""
FROM: Final = 4096
"""Cells of a sequence from which on it is a long one."""
SHORT: Final = {64: 111.0, 256: 442.0}
"""Microseconds of so many short sequences, of our kernel on a v5e once: half is the target."""
MOST_RATIO: Final = 1.3
ONE_HEAD: Final = Heads(8, 1, 128)


@frozen(kw_only=True)
class Aim:
    """One figure of a grid point's calls. text: how it is printed. why: a reason if it is unknown.

    least, most: the target, or none. is_above: it is to be above the other kernel's too.
    """

    label: str
    value: Callable[[Compiled], float | None]
    text: Callable[[float], str]
    why: Callable[[Compiled], str]
    least: float | None = None
    most: float | None = None
    is_above: bool = False


Aims = Mapping[Cell, Sequence[Aim]]


def percent(share: float) -> str:
    """A share; small ones with a decimal."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _of_call(
    call: calls.Call, label: str, of: Callable[..., float | None], text: Callable[[float], str]
) -> Aim:
    """A figure of one call, without a target."""
    why = partial(cost_figures.why_unknown, call=call)
    return Aim(label=label, value=lambda record: of(record, call), text=text, why=why)


def _row(what: str, target: str, aims: Aims) -> Row:
    """A line with these figures."""
    return Row(what, target, tuple(aims), partial(_figures, aims), partial(_judge, aims))


def _figures(aims: Aims, some: Sequence[Cell], held: Held) -> str:
    """All figures of one kernel; what is missing of a grid point is said once."""
    return ", ".join(_together(aims[cell], held.get(cell)) for cell in some)


def _together(aims: Sequence[Aim], record: Compiled | None) -> str:
    told = [(aim.label, one_of(record, partial(_text, aim))) for aim in aims]
    return ", ".join(f"{label}: {text}" for label, text in told)


def _text(aim: Aim, record: Compiled) -> str | None:
    value = aim.value(record)
    return None if value is None else aim.text(value)


def _judge(aims: Aims, cell: Cell, records: Records, found: Judged) -> None:
    record = known(cell, records, found)
    for aim in aims[cell] if record is not None else ():
        assert record is not None
        value, where = aim.value(record), f"{name(cell)}, {aim.label}"
        if value is None:
            found.open.append(f"{where}: {aim.why(record)}")
            continue
        _compare(aim, value, where, found)
        if aim.is_above:
            _exceed(aim, value, where, records[RIVAL].get(cell), found)


def _compare(aim: Aim, value: float, where: str, found: Judged) -> None:
    if aim.least is not None and value < aim.least:
        found.missed.append(f"{where}: {aim.text(value)}, at least {aim.text(aim.least)}")
    if aim.most is not None and value > aim.most:
        found.missed.append(f"{where}: {aim.text(value)}, at most {aim.text(aim.most)}")


def _exceed(aim: Aim, value: float, where: str, other: Compiled | None, found: Judged) -> None:
    """A kernel that does not take the grid point is exceeded."""
    if other is not None and other.verdict in {"fails", "refused"}:
        return
    rival = None if other is None else aim.value(other)
    if rival is None:
        found.open.append(f"{where}: {KERNELS[RIVAL]} is not measured")
    elif rival >= value:
        told = f"{KERNELS[RIVAL]} has {aim.text(rival)}"
        found.missed.append(f"{where}: {aim.text(value)}, {told}")


def _decoding_cell(chip: str, page_size: int, heads: Heads = calls.HEAD) -> Cell:
    (found,) = cells((heads,), chips=(chip,), page_sizes=(page_size,))
    return evolve(found, positions=calls.POSITIONS)


def _prompt_cell(chip: str, tokens: int) -> Cell:
    (found,) = cells((calls.HEAD,), chips=(chip,), page_sizes=(128,))
    return evolve(found, tokens=tokens, positions=calls.POSITIONS)


def _long(label: str, least: float) -> Aim:
    """The least share of the bandwidth of long sequences."""
    several = [calls.decoding(kv_len) for kv_len in calls.KV_LENS if kv_len >= FROM]
    return Aim(
        label=label,
        value=lambda record: cost_figures.least_mbu(record, several),
        text=percent,
        why=lambda record: cost_figures.why_unknown(record, several[0]),
        least=least,
    )


def rows() -> tuple[Row, ...]:
    """The lines of whole calls."""
    return (*_of_decoding(), *_of_prompts(), *_of_batches())


def _of_decoding() -> tuple[Row, ...]:
    middle = {2047: 0.95, 1024: 0.85, 512: 0.70}
    shares = [
        evolve(
            _of_call(calls.decoding(kv_len), f"{kv_len:,} cells", cost_figures.mbu, percent),
            least=least,
            is_above=True,
        )
        for kv_len, least in middle.items()
    ]
    beside = _of_call(calls.neighbours(FROM), "page 16, adjacent ids", cost_figures.mbu, percent)
    return (
        _row(
            "MBU of decoding 64 sequences, a whole call, (32, 8, 128), bfloat16, v6e, pages of 128",
            "at least 95, 85 and 70%, and above v3 in each",
            {_decoding_cell("v6e", 128): shares},
        ),
        _row(
            "the same of 4,096 cells and more, the least of three lengths, pages of 16",
            "at least 98% and 88%",
            {
                _decoding_cell("v6e", 16): [_long("v6e", 0.98)],
                _decoding_cell("7x", 16): [_long("7x", 0.88)],
            },
        ),
        _row(
            "the same of one KV head, (8, 1, 128), v6e",
            "at least 45%, 80% and 95%",
            {
                _decoding_cell("v6e", 16, ONE_HEAD): [
                    _long("page 16, scattered ids", 0.45),
                    evolve(beside, least=0.80),
                ],
                _decoding_cell("v6e", 128, ONE_HEAD): [_long("page 128", 0.95)],
            },
        ),
    )


def _of_prompts() -> tuple[Row, ...]:
    def share(tokens: int, least: float | None, chip: str) -> Aim:
        aim = _of_call(
            calls.prompt(tokens), f"{chip}, {tokens:,} tokens", cost_figures.mfu, percent
        )
        return evolve(aim, least=least, is_above=chip == "v6e")

    short, long = calls.PROMPT_LENS, calls.LONG_PROMPT
    on_v6e = [share(tokens, 0.30 if tokens == max(short) else None, "v6e") for tokens in short]
    return (
        _row(
            "MFU of a whole prompt from nothing, (32, 8, 128), bfloat16, pages of 128",
            "of 2,048 tokens at least 30% on v6e and 70% on v5e; above v3 at every length on v6e",
            {
                _prompt_cell("v6e", max(short)): on_v6e,
                _prompt_cell("v6e", long): [share(long, None, "v6e")],
                _prompt_cell("v5e", max(short)): [share(max(short), 0.70, "v5e")],
            },
        ),
    )


def _of_batches() -> tuple[Row, ...]:
    cell = _decoding_cell("v6e", 128)
    few = _decoding_cell("v5e", 128)
    many = evolve(few, tokens=calls.MANY, seqs=calls.MANY)

    def time(seqs: int) -> Aim:
        aim = _of_call(
            calls.short(seqs), f"{seqs}", cost_figures.microseconds, lambda value: f"{value:.0f}"
        )
        return evolve(aim, most=SHORT[seqs] / 2)

    def times(queries: int) -> Aim:
        of = partial(cost_figures.ratio, to=calls.decoding(calls.BEHIND))
        aim = _of_call(
            calls.several(queries), f"{queries} queries", of, lambda value: f"{value:.2f}"
        )
        return evolve(aim, most=MOST_RATIO)

    return (
        _row(
            "microseconds of a batch of short sequences of 1 to 128 cells, (32, 8, 128), bfloat16, "
            "v5e, pages of 128",
            "at most 56 and 221",
            {few: [time(64)], many: [time(256)]},
        ),
        _row(
            "a few queries for each of 64 sequences of 4,096 cells, relative to one, (32, 8, 128), "
            "bfloat16, v6e, pages of 128",
            f"at most {MOST_RATIO}",
            {cell: [times(queries) for queries in calls.QUERIES]},
        ),
    )
