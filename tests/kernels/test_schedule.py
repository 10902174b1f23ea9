"""The reader of the compiler's report and schedule, on small excerpts written by hand."""

import json
import random
from typing import Any, Final

import pytest

from conformance.kernels.compile import bundles, loops, reasons, vmem
from conformance.kernels.compile.bundles import Loop
from conformance.kernels.compile.loops import Pass

SIZES: Final = {
    "decode_steps": 4,
    "decode_cells": 256,
    "prefill_cells": 512,
    "edge_cells": 128,
    "q_rows": 128,
    "head_turns": 2,
    "loops_before": 3,
}


def schedule(*lines: str) -> str:
    """The text of a schedule with a bundle for each `label|text`."""
    bundle = "  {number:#x} {label:2s}: {depth} {{ {text} }}"
    found = []
    for number, line in enumerate(lines):
        label, _, text = line.partition("|")
        found.append(bundle.format(number=number, label=label.strip(), depth=">", text=text))
    return "= control target key start\nLB: loop body\n\n" + "\n".join(found)


def jump(target: int) -> str:
    """A jump to a bundle, if its predicate holds."""
    return f"%12 = sbr.rel (!%p1_p2) target bundleno = {target} ({target:#x}), region = 7"


PRODUCT: Final = "%3 = vmatmul.mubr.bf16.gmra.mxu0 %v1"
OURS: Final = schedule(
    "LB|",  # 0: the work
    *("LB|", *[f"| {PRODUCT} ;; {PRODUCT}"] * 2, f"| {jump(1)}", "|"),  # 1-5: groups of 4 steps
    *("LB|", f"| {PRODUCT}", f"| {jump(6)}", "|"),  # 6-9: single steps
    *("LB|", f"| {PRODUCT}", f"| {jump(10)}", "|"),  # 10-13: long steps of a few queries
    *("LB|", f"| {PRODUCT}", f"| {jump(14)}", "|"),  # 14-17: short
    *("LB|", f"| {PRODUCT}", f"| {jump(18)}", "|"),  # 18-21: short with a mask
    *("LB|", "|"),  # 22-23: long steps of a prefill
    *("LB|", f"| {PRODUCT} ;; {PRODUCT}", f"| {jump(24)}", "|"),  # 24-27: two heads of four
    *(f"| {jump(22)}", "|"),  # 28-29
    *("LB|", "LB|", f"| {PRODUCT}", f"| {jump(31)}", "|", f"| {jump(30)}", "|"),  # 30-36: short
    *("LB|", f"| {PRODUCT}", f"| {jump(37)}", "|"),  # 37-40: short with a mask
    *(f"PF| {jump(0)}", "|", "PF|"),  # 41-43
)


def test_a_schedule_has_loops_that_end_behind_the_jump_back() -> None:
    """A loop ends behind its jump back, and inner loops are found."""
    found = bundles.parse(OURS)

    assert 44 == found.bundles
    assert (Loop(0, 43, 12),) == found.outer()
    few = Loop(10, 14, 1), Loop(14, 18, 1), Loop(18, 22, 1)
    prefill = Loop(22, 30, 2), Loop(30, 37, 1), Loop(37, 41, 1)
    assert (Loop(1, 6, 4), Loop(6, 10, 1), *few, *prefill) == found.inside(found.outer()[0])
    assert [1, 6, 10, 14, 18, 24, 31, 37] == [loop.start for loop in found.innermost()]


class Program:
    """A random program. expected: its loops, as they are written."""

    def __init__(self, seed: int) -> None:
        self._draws, self._lines = random.Random(seed), ["|"]
        self.delay, self.expected = self._draws.randrange(4), list[Loop]()
        while len(self.expected) < 4:
            self._loop(depth=0)
        self.text = schedule(*self._lines, "PF|")

    def _loop(self, *, depth: int) -> None:
        """A loop with products, other loops, and jumps back before its last one."""
        start = len(self._lines)
        self._lines.append("LB|")
        for _ in range(self._draws.randrange(4)):
            match self._draws.choice(["product", "loop", "back"]):
                case "product":
                    self._lines.append(f"| {PRODUCT}")
                case "loop" if depth < 2:
                    self._loop(depth=depth + 1)
                case "back":
                    self._lines += [f"| {jump(start)}", *["|"] * self.delay, "|"]
        self._lines += [f"| {jump(start)}", *["|"] * self.delay]
        products = sum(line.count("vmatmul") for line in self._lines[start:])
        self.expected.append(Loop(start, len(self._lines), products))
        self._lines.append("PF|")


@pytest.mark.parametrize("seed", range(40))
def test_the_loops_of_any_program_are_found(seed: int) -> None:
    """Each loop has its start, its end behind its last jump back, and its products."""
    program = Program(seed)

    found = bundles.parse(program.text)

    expected = sorted(program.expected, key=lambda loop: loop.start)
    assert tuple(expected) == found.loops
    for outer in expected:
        within = [one for one in expected if outer.start < one.start < outer.end and one.products]
        direct = [one for one in within if not any(two.holds(one) for two in within)]
        assert tuple(direct) == found.inside(outer)


@pytest.mark.parametrize("turns", range(1, 17))
def test_a_step_repeats_its_heads(turns: int) -> None:
    """The loop over heads, of a few at a time, is counted as often as it is repeated."""
    found = loops.count("tpu", {"": bundles.parse(OURS)}, SIZES | {"head_turns": turns})

    if turns == 1:  # then there is no loop over heads, and here is one
        assert "no loop of their own" in found.why
    else:
        assert Pass(8 + (turns - 1) * 4, 512, 128) == found.prefill


@pytest.mark.parametrize("text", ["", "no bundle", "  0x4   :  { }"])
def test_what_is_no_schedule_is_not_read(text: str) -> None:
    """A text without bundles, or with some of them missing, is refused."""
    with pytest.raises(ValueError, match="schedule"):
        bundles.parse(text)


def test_cycles_of_our_kernel_are_counted() -> None:
    """Decoding counts its loop over groups; a prefill counts its long steps over all heads."""
    found = loops.count("tpu", {"": bundles.parse(OURS)}, SIZES)

    assert Pass(5, 4 * 256, 1) == found.decode
    assert Pass(8 + 4, 512, 128) == found.prefill
    assert "" == found.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"decode_steps": 8}, "8 times the products"),
        ({"head_turns": 3}, None),
        (None, "unknown block sizes"),
    ],
)
def test_what_does_not_agree_is_not_known(change: dict[str, int] | None, why: str | None) -> None:
    """If the sizes do not explain the loops, the cycles per token are unknown."""
    sizes = None if change is None else SIZES | change
    found = loops.count("tpu", {"": bundles.parse(OURS)}, sizes)

    if why is None:  # another number of heads only repeats the loop over heads
        assert found.prefill is not None
        assert 8 + 2 * 4 == found.prefill.cycles
    else:
        assert found.decode is None
        assert why in found.why


def test_steps_of_a_prefill_in_another_order_are_not_known() -> None:
    """Short steps of a prefill, which have a mask, are not mistaken for long ones."""
    lines = [line.partition("{ ")[2][:-2] for line in OURS.splitlines() if "{" in line]
    labels = ["LB" if " LB " in line else "" for line in OURS.splitlines() if "{" in line]
    swapped = [
        f"{label}|{text.replace(f'{PRODUCT} ;; {PRODUCT}', PRODUCT) if at == 25 else text}"
        for at, (label, text) in enumerate(zip(labels, lines, strict=True))
    ]
    swapped[32] += f" ;; {PRODUCT}"
    found = loops.count("tpu", {"": bundles.parse(schedule(*swapped))}, SIZES)

    assert found.prefill is None
    assert "do not come before short ones" in found.why


def test_a_loop_too_many_is_not_known() -> None:
    """A number of inner loops that does not fit the kernel is not explained."""
    two = schedule("LB|", f"| {PRODUCT} ;; {jump(0)}", "|", "LB|", f"| {PRODUCT} ;; {jump(3)}", "|")
    found = bundles.parse(two)

    assert "2 innermost loops" in loops.count("jax", {"": found}, {"head_blocks": 1}).why
    assert "0 inner loops" in loops.count("tpu", {"": found}, SIZES).why
    assert "loops are listed" in loops.count("somebody:kernel", {"": found}, None).why


def test_cycles_of_the_kernel_of_jax_are_counted() -> None:
    """The only inner loop of jax's kernel serves decoding and prefill, once for each head block."""
    text = schedule("|", "LB|", "LB|", f"| {PRODUCT}", f"| {jump(2)}", f"| {jump(1)}", "PF|")
    sizes = {"head_blocks": 2, "kv_cells": 512, "q_rows": 32}
    found = loops.count("jax", {"": bundles.parse(text)}, sizes)

    assert Pass(6, 512, 1) == found.decode
    assert Pass(6, 512, 32) == found.prefill


DECODING: Final = "RPAd-p_128-bq_1_1-bkv_4096_4096.1"
MIXED: Final = "RPAm-p_128-bq_256_128-bkv_1024_512.1"
ONE_LOOP: Final = schedule("|", "LB|", f"| {PRODUCT}", f"| {jump(1)}", "PF|")
NO_LOOP: Final = schedule("|", f"| {PRODUCT}", "PF|")


def test_cycles_of_the_kernels_of_tpu_inference_are_counted() -> None:
    """Each kernel of tpu-inference has one inner loop, and its sizes are part of its name."""
    found = bundles.parse(ONE_LOOP)
    every = {DECODING: found, "another": bundles.parse(OURS), MIXED: found}
    known = loops.count("tpu-inference", every, None)

    assert Pass(found.innermost()[0].cycles, 4096, 1) == known.decode
    assert Pass(found.innermost()[0].cycles, 512, 256) == known.prefill
    assert "" == known.why


@pytest.mark.parametrize(
    ("schedules", "why"),
    [
        ({DECODING: ONE_LOOP, MIXED: NO_LOOP}, "0 innermost loops with products, 1 expected"),
        ({DECODING: OURS, MIXED: ONE_LOOP}, "8 innermost loops with products, 1 expected"),
        ({DECODING: ONE_LOOP}, "one RPAd and one RPAm expected"),
        ({DECODING: ONE_LOOP, "RPAm-other": ONE_LOOP}, "one RPAd and one RPAm expected"),
    ],
)
def test_kernels_of_tpu_inference_that_are_otherwise_are_not_known(
    schedules: dict[str, str], why: str
) -> None:
    """Another number of loops, or a name without sizes, gives no cycles."""
    read = {name: bundles.parse(text) for name, text in schedules.items()}
    known = loops.count("tpu-inference", read, None)

    assert None in (known.decode, known.prefill)
    assert why in known.why


def page(**breakdowns: Any) -> str:
    """A memory report with these operations."""
    data = {"global_info": {"vmem_capacity": 1000}, "hlo_breakdowns": breakdowns}
    return f"<script>\n  // the source\n  const DATA ={json.dumps(data)};\n  const x = 1;</script>"


def operation(metadata: str, *allocations: tuple[str, int]) -> dict[str, Any]:
    """An operation with these allocations, and a temporary that belongs to another."""
    every = [{"tag": tag, "size": size} for tag, size in allocations]
    scoped = {"allocations": every, "block_size": sum(size for _, size in allocations)}
    other = {"allocations": [], "block_size": 512, "block_type": "HLO_TEMPORARY"}
    return {"blocks": [other, scoped | {"block_type": "SCOPED"}], "metadata": metadata}


def test_vector_memory_is_that_of_the_largest_kernel() -> None:
    """Vector memory is a kernel's scratch and spills, without other operations or temporaries."""
    kernel = 'op_name="jit(f)/kernel/pallas_call"'
    found = vmem.parse(
        page(
            small=operation(kernel, ("scratch operand", 10)),
            large=operation(kernel, ("scratch operand", 70), ("SPILL", 20), ("SPILL", 5)),
            other=operation('op_name="jit(f)/pad"', ("operand", 500)),
        )
    )

    assert vmem.Memory(95, 25, 1000, ("small", "large")) == found


KINDS: Final = ("SCOPED", "HLO_TEMPORARY", "SCOPED")
TAGS: Final = ("SPILL", "scratch operand", None)


@pytest.mark.parametrize("seed", range(20))
def test_any_report_is_the_sum_of_its_scoped_blocks(seed: int) -> None:
    """Each scoped block of a kernel counts, with each spill in it, and the largest kernel wins."""
    draws = random.Random(seed)

    def block() -> dict[str, Any]:
        tags = [draws.choice(TAGS) for _ in range(draws.randrange(4))]
        held = [{"size": 1 + draws.randrange(9)} | ({"tag": tag} if tag else {}) for tag in tags]
        size = 100 * draws.randrange(1, 20) + len(held)
        return {"block_type": draws.choice(KINDS), "block_size": size, "allocations": held}

    def names(count: int, what: str) -> dict[str, Any]:
        every = range(count)
        parts = [[block() for _ in range(draws.randrange(4))] for _ in every]
        return {f"{what} {at}": {"metadata": f"jit(f)/{what}", "blocks": parts[at]} for at in every}

    kernels = names(draws.randrange(1, 4), "pallas_call")
    found = vmem.parse(page(**names(2, "pad"), **kernels))

    scoped = {
        name: [one for one in part["blocks"] if one["block_type"] == "SCOPED"]
        for name, part in kernels.items()
    }
    used = {name: sum(one["block_size"] for one in some) for name, some in scoped.items()}
    spilled = {
        name: [a["size"] for one in some for a in one["allocations"] if a.get("tag") == "SPILL"]
        for name, some in scoped.items()
    }
    largest = [name for name in used if used[name] == max(used.values())]
    assert max(used.values()) == found.used
    assert found.spilled in {sum(spilled[name]) for name in largest}
    assert (1000, tuple(kernels)) == (found.capacity, found.kernels)


@pytest.mark.parametrize("text", ["", page(), page(pad=operation("jit(f)/pad", ("operand", 1)))])
def test_a_report_without_a_kernel_is_not_read(text: str) -> None:
    """A report without a kernel is refused."""
    with pytest.raises(ValueError, match="memory report"):
        vmem.parse(text)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            RuntimeError(
                "RESOURCE_EXHAUSTED: E1001:\nRan out of memory in memory space vmem while on stack"
                " for %k = bf16[5]. Scoped allocation with size 65.54M and limit 16.00M exceeded"
                " scoped vmem limit by 49.54M."
            ),
            ("vmem", "needs 65.54 MiB of vmem, limit 16.00 MiB"),
        ),
        (
            RuntimeError("Ran out of memory in memory space smem. Used 1.05M of 1.00M smem. Exce"),
            ("smem", "needs 1.05 MiB of smem, limit 1.00 MiB"),
        ),
        (
            NotImplementedError("\nno tiling, see /a/b c/some/file.py:3\nmore"),
            ("NotImplementedError", "NotImplementedError: no tiling, see b c/some/file.py:3"),
        ),
    ],
)
def test_a_reason_is_one_line_without_folders(error: Exception, expected: tuple[str, str]) -> None:
    """The reason is the need and the limit if memory is short, or the error's first line."""
    assert expected == reasons.explain(error)


def test_an_error_without_words_is_told_by_its_line() -> None:
    """An assertion without a message is described by its source line and file."""
    seen = [1]
    try:
        assert seen == []
    except AssertionError as error:
        cause, text = reasons.explain(AssertionError().with_traceback(error.__traceback__))
    assert "AssertionError" == cause
    assert "AssertionError: assert seen == [] (test_schedule.py)" == text


@pytest.mark.parametrize("tag", ["SPILL", "SPILLED", "SP", "spill", "", "scratch operand", None])
def test_only_spilled_registers_are_spilled(tag: str | None) -> None:
    """An allocation counts as spilled by its very tag, and one without a tag does not."""
    held = operation('op_name="jit(f)/pallas_call"', ("scratch operand", 70), ("SPILL", 5))
    held["blocks"][1]["allocations"].append({"size": 20} | ({} if tag is None else {"tag": tag}))

    assert (25 if tag == "SPILL" else 5) == vmem.parse(page(one=held)).spilled


@pytest.mark.parametrize("length", range(reasons.LONGEST - 2, reasons.LONGEST + 4))
def test_a_reason_is_cut_only_past_its_limit(length: int) -> None:
    """A text of the limit is whole, and a longer one is as long as the limit, with three dots."""
    text = "".join(str(at % 10) for at in range(length))

    said = reasons.short(text)

    limit = reasons.LONGEST
    assert (text if length <= limit else f"{text[: limit - 3]}...") == said
    assert min(length, limit) == len(said)
