"""The simulator of schedules, on programs that are written and counted by hand."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest
from attrs import evolve

from conformance.kernels.compile import copies, program, simulate
from conformance.kernels.compile.program import Instruction, NotUnderstood, Program
from conformance.kernels.compile.simulate import Run

DELAY: Final = ("|",) * 4
HBM: Final = (
    "inlined_call_operand.hbm [shape: {kind}, index: {index}, kind: {way}, shape index: {{}}]"
)


def text(*lines: str) -> str:
    """The text of a schedule with a bundle for each `label|instructions`."""
    row = "  {number:#x} {label:2s}: > {{ {text} }} /* Start region {number} */"
    found = []
    for number, line in enumerate(lines):
        label, _, rest = line.partition("|")
        found.append(row.format(number=number, label=label.strip(), text=rest))
    return "= control target key start\nLB: loop body\n\n" + "\n".join(found)


def operand(name: str, index: int, kind: str = "s32[1]", way: str = "input") -> str:
    """The entry of an operand in main memory."""
    return f"%{name} = {HBM.format(kind=kind, index=index, way=way)} /* operand {index} */"


def jump(target: int, predicate: str = "") -> str:
    """A jump to a bundle."""
    return f"%99 = sbr.rel {predicate} target bundleno = {target} ({target:#x}), region = 7"


def copy(granules: str, flag: str = "[#allocation9]", *, hbm: str = "%s1_s0") -> str:
    """A copy from main memory to vector memory."""
    return (
        f"%98 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/{hbm}, /*size_in_granules=*/{granules}, "
        f"/*vmem=*/%s9_s9, /*dst_syncflagno=*/{flag}"
    )


def wait(granules: str, flag: str = "[#allocation9]") -> list[str]:
    """A wait for a copy, and what it takes from the count."""
    less = f"%s98_s30 = ssub.s32 0, {granules}"
    return [
        f"| %97 = dma.done.wait {flag}, {granules} ;; {less}",
        f"| %96 = vsyncadd {flag}, %s98_s30",
    ]


LOADING: Final = "%9 = dma.hbm_to_smem /*hbm=*/%s1_s0, /*size_in_granules=*/16,"
LOAD: Final = (
    f"| {operand('s1_s0', 0)} ;; %s2_s1 = smov [#allocation1] /* materialized constant */",
    f"| {LOADING} /*smem=*/%s2_s1, /*dst_syncflagno=*/[#allocation2] /* \nstrides: (1) */",
    "| %10 = dma.done.wait [#allocation2], 16 /* pipeline-emitter-dma-wait */",
    "| %11 = vsyncadd [#allocation2], 4294967280",
)
"""Four bundles that bring a number to scalar memory."""
COUNTING: Final = text(
    *LOAD,
    "| %s3_s2 = sld [smem:[#allocation1]] ;; %s10_s5 = smov 0 /* copy for cssa */",  # 4
    "LB| %s12_s5 = sadd.s32 1, %s11_s5 ;; %s11_s5 = sphi %s10_s5, %s12_s5 ;; %v1_v1 = vadd.f32 %v0",
    "| %p1_p0 = scmp.lt.s32.totalorder %s12_s5, %s3_s2",  # 6
    f"| {jump(5, '(%p1_p0)')}",
    *DELAY,  # 8 to 11
    "PF|",  # 12
)
"""A loop of seven bundles that is passed as often as the operand says, and at least once."""
BRANCHING: Final = text(
    *LOAD,
    "| %s3_s2 = sld [smem:[#allocation1]] ;; %s20_s6 = smov 3",  # 4
    "| %p1_p0 = scmp.gt.s32.totalorder %s3_s2, 10",  # 5
    f"| {jump(13, '(!%p1_p0)')} ;; %s21_s7 = smov (%p1_p0), 5",  # 6
    "| %s40_s6 = smov (!%p1_p0, %s3_s2), 40",  # 7, a delay slot: 40 if the operand is small
    *DELAY[1:],  # 8 to 10
    "PF| %s22_s7 = sadd.s32 1, %s21_s7",  # 11
    "|",  # 12
    f"PF| {operand('s5_s3', 1, 'bf16[9,8,128]')} ;; {copy('%s40_s6', hbm='%s5_s3')}",  # 13
    *wait("%s40_s6"),
)
"""Two bundles are passed over if the operand is small; a copy is as long as it says otherwise."""


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not end is given up early."""
    monkeypatch.setattr(simulate, "MOST_BLOCKS", 2000)


def run(schedule: str, *numbers: int, change: Callable[[Program], Program] = lambda p: p) -> Run:
    """A run with one number in the first operand."""
    data = {0: np.array(numbers or [0], np.int32)}
    return simulate.run(simulate.executable(change(program.parse(schedule))), data)


@pytest.mark.parametrize("times", [1, 2, 7, 1000])
def test_a_loop_is_passed_as_often_as_its_operand_says(times: int) -> None:
    """A loop costs its bundles, with the delay slots of its jump, each time."""
    found = run(COUNTING, times)

    assert 5 + 7 * times + 1 == found.cycles
    assert times == found.visits[5]
    assert (1, 16) == (found.copies, found.main)


@pytest.mark.parametrize(("number", "cycles", "granules"), [(5, 14, 40), (11, 16, 11)])
def test_predicates_decide(number: int, cycles: int, granules: int) -> None:
    """A jump, a value and another in its place depend on what was compared."""
    found = run(BRANCHING, number)

    assert cycles == found.cycles
    assert {0: 16, 1: granules} == found.read


def without(part: Callable[[Instruction], Instruction]) -> Callable[[Program], Program]:
    """A program whose instructions are changed."""
    return lambda whole: evolve(
        whole, rows=tuple(tuple(part(one) for one in row) for row in whole.rows)
    )


PLANTED: Final[dict[str, Callable[[Program], Program]]] = {
    "no delay slots": lambda whole: evolve(whole, delay=0),
    "a delay slot too few": lambda whole: evolve(whole, delay=whole.delay - 1),
    "predicates ignored": without(lambda one: evolve(one, predicate=None)),
    "predicates turned": without(
        lambda one: evolve(
            one, predicate=one.predicate and (one.predicate[0], not one.predicate[1])
        )
    ),
    "no value where a predicate does not hold": without(lambda one: evolve(one, otherwise=None)),
    "phi ignored": without(
        lambda one: evolve(one, operation="sfence") if one.operation == "sphi" else one
    ),
    "stores and loads ignored": without(
        lambda one: evolve(one, operation="sfence", result=None) if one.operation == "sld" else one
    ),
    "copies to scalar memory ignored": without(
        lambda one: evolve(one, operation="sfence") if "to_smem" in one.operation else one
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_noticed(bug: str) -> None:
    """With a bug in the reading of a program, a count is another one or unknown."""
    expected = [(COUNTING, 7, 55, {0: 16}), (BRANCHING, 5, 14, {0: 16, 1: 40})]
    expected += [(BRANCHING, 11, 16, {0: 16, 1: 11})]

    def holds(schedule: str, number: int, cycles: int, read: dict[int, int]) -> bool:
        try:
            found = run(schedule, number, change=PLANTED[bug])
        except NotUnderstood:
            return False
        return (cycles, read) == (found.cycles, found.read)

    assert not all(holds(*one) for one in expected)


@pytest.mark.parametrize(
    ("instruction", "value"),
    [
        ("sadd.s32 5, 4294967294", 3),
        ("ssub.s32 5, 2", 3),
        ("smul.u32 5, 7", 35),
        ("sand.u32 12, 10", 8),
        ("sor.u32 12, 10", 14),
        ("sxor.u32 12, 10", 6),
        ("sshll.u32 3, 4", 48),
        ("sshll.u32 1, 32", 0),
        ("sshra.s32 33, 1", 16),
        ("sshrl.u32 4294967295, 28", 15),
        ("smin.u32 4294967295, 7", 7),
        ("smax.s32 4294967295, 7", 7),
        ("smov 9", 9),
        ("scalar_lea.vmem 4, 5 [#allocation7]", 9),
    ],
)
def test_a_value_is_computed(instruction: str, value: int) -> None:
    """Arithmetic is of 32 bits; a copy of so many granules shows the value."""
    lines = (f"| {operand('s1_s0', 0)} ;; %s2_s1 = {instruction}", f"| {copy('%s2_s1')}", "|")

    assert value == run(text(*lines, *wait("%s2_s1"))).main


@pytest.mark.parametrize(
    ("compared", "holds"),
    [
        ("scmp.lt.s32.totalorder 4294967295, 1", True),
        ("scmp.lt.u32 4294967295, 1", False),
        ("scmp.le.s32.totalorder 1, 1", True),
        ("scmp.gt.s32.totalorder 1, 1", False),
        ("scmp.ge.s32.totalorder 1, 1", True),
        ("scmp.eq.s32.totalorder 2, 1", False),
        ("scmp.ne.s32.totalorder 2, 1", True),
    ],
)
def test_a_comparison_selects(compared: str, *, holds: bool) -> None:
    """Numbers are compared with or without a sign; logic of predicates follows."""
    chosen = "scalar_select /*predicate=*/{}, /*on_true=*/4, /*on_false=*/6"
    lines = (
        f"| {operand('s1_s0', 0)} ;; %p1_p1 = {compared}",
        "| %p2_p2 = pneg %p1_p1",
        "| %p3_p3 = por %p1_p1, %p2_p2 ;; %p4_p4 = pnand %p1_p1, %p1_p1",
        "| %p5_p5 = pand %p3_p3, %p4_p4",  # as the second
        f"| %s2_s1 = {chosen.format('%p5_p5')}",
        f"| {copy('%s2_s1')}",
    )

    assert (6 if holds else 4) == run(text(*lines, *wait("%s2_s1"))).main


def test_a_bundle_reads_before_it_writes() -> None:
    """Who reads a register in the bundle that writes it gets the earlier value."""
    lines = (
        f"| {operand('s1_s0', 0)} ;; %s10_s5 = smov 3 ;; %p1_p0 = scmp.eq.s32.totalorder 1, 2",
        "LB| %s12_s5 = smov 8 ;; %s13_s6 = smov %s11_s5 ;; %s11_s5 = sphi %s10_s5, %s12_s5",
        f"| {jump(1, '(%p1_p0)')}",
        *DELAY,
        f"PF| {copy('%s13_s6')}",
    )
    for turned in (lines, (lines[0], "LB| " + " ;; ".join(lines[1][4:].split(" ;; ")[::-1]))):
        whole = (*turned, *lines[len(turned) :])
        assert 3 == run(text(*whole, *wait("%s13_s6"))).main


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (("| %s2_s1 = sdivrem.u32 7, 2",), "sdivrem.u32 7, 2"),
        (("| %s2_s1 = vpush.of.something %v1",), "vpush.of.something"),
        (("| %p1_p1 = scmp.lt.f32.partialorder 1, 2",), "scmp.lt.f32"),
        ((f"| {copy('4')}".replace("size_in", "half_of"),), "half_of_granules"),
        ((f"| {copy('4')}".replace("[thread:$0]", "[thread:$0] [#allocation3],"),), "allocation3"),
        (("| %9 = shalt.err /* BoundsCheck */",), "halts"),
        (tuple(wait("4")), "4 granules without a copy"),
        ((f"| {copy('-1')}",), "a copy of -1 granules"),
        ((f"| {jump(1)}", "|"), "target bundleno = 1"),
        ((f"| {jump(9)} ;; {jump(9)}", *DELAY, "|", "|", "PF|"), "delay slots"),
        ((f"| {jump(9)}", f"| {jump(9)}", *DELAY, "|", "PF|"), "delay slots"),
        (("| %12 = scall.rel target bundleno = 3",), "scall.rel"),
        (("LB|", f"| {jump(1)}", *DELAY, "PF|"), "basic blocks are executed"),
    ],
)
def test_what_is_not_understood_is_named(lines: tuple[str, ...], why: str) -> None:
    """An unknown instruction, or one that cannot be, gives no figure."""
    with pytest.raises(NotUnderstood, match=why):
        run(text(f"| {operand('s1_s0', 0)}", *lines))


def test_what_is_not_executed_need_not_be_understood() -> None:
    """An unknown instruction that is jumped over has no part in a figure."""
    lines = (f"| {jump(7)}", *DELAY, "PF| %s2_s1 = sdivrem.u32 7, 2", "PF|")

    assert 7 == run(text(f"| {operand('s1_s0', 0)}", *lines)).cycles


def test_a_run_that_depends_on_nothing_is_unknown() -> None:
    """What was never written decides nothing, or the figure is unknown."""
    lines = (
        f"| {operand('s1_s0', 0)} ;; %s2_s1 = sld [smem:[#allocation5 + $0x2]]",
        "| %p1_p1 = scmp.eq.s32.totalorder %s2_s1, 0",
        f"| {jump(9, '(%p1_p1)')}",
        *DELAY,
        "PF|",
        "|",
        "PF|",
    )
    with pytest.raises(NotUnderstood, match="nothing has written"):
        run(text(*lines))
    written = ("| %4 = sst [smem:[#allocation5 + $0x2]] (%p9_p9), 7", lines[0])
    assert (
        12
        == run(text("| %p9_p9 = scmp.eq.s32.totalorder 1, 1", *written, *shifted(lines[1:]))).cycles
    )


def shifted(lines: Sequence[str]) -> list[str]:
    """The same lines two bundles later."""
    return [line.replace("bundleno = 9 (0x9)", "bundleno = 11 (0xb)") for line in lines]


def test_addresses_are_followed() -> None:
    """Main memory may be counted in 512 bytes; page ids come from rows of vector memory too."""
    table = np.arange(300, dtype=np.int32).reshape(3, 1, 100)
    entry = "%s7_s7 = inlined_call_operand.vmem [shape: s32[3,1,100], index: 3, kind: input]"
    sixteen, read = (f"/*size_in_granules=*/{size}," for size in ("16", "%s16_s6"))
    flag, other = "/*dst_syncflagno=*/[#allocation9]", "/*src_syncflagno=*/[#allocation3]"
    lines = (
        f"| {operand('s1_s0', 0, 'bf16[9,8,128]')} ;; {entry} ;; %s8_s8 = smov [#allocation4]",
        "| %s10_s2 = scalar_lea.vmem %s7_s7, 2 ;; %s11_s3 = scalar_lea.hbm %s1_s0, 64",
        "| %s12_s4 = sshll.u32 %s10_s2, 4 ;; %s13_s4 = int_to_ptr.vmem %s12_s4",
        "| %s14_s5 = sshll.u32 %s11_s3, 4 ;; %s15_s5 = int_to_ptr.hbm [resolvable:$true] %s14_s5",
        f"| %5 = dma.vmem_to_smem /*vmem=*/%s13_s4, {sixteen} /*smem=*/%s8_s8, {flag}",
        *wait("16"),
        "| %s16_s6 = sld [smem:[#allocation4 + $0x7]]",
        f"| %6 = dma.general /*src=*/%s15_s5, {read} /*dst=*/%s13_s4, {flag}, {other}",
        *wait("%s16_s6"),
    )
    whole = simulate.executable(program.parse(text(*lines)))
    found = simulate.run(whole, {3: table})

    assert {0: 207, 3: 16} == found.read
    assert 207 == found.main
    with pytest.raises(NotUnderstood, match="shape"):
        simulate.run(whole, {3: table[:2]})
    with pytest.raises(NotUnderstood, match="has no numbers"):
        simulate.run(whole, {})


@pytest.mark.parametrize("shape", [(5,), (300,), (3, 1, 128), (16, 300), (5, 9), (2, 3, 200)])
def test_main_memory_holds_tiles(shape: tuple[int, ...]) -> None:
    """Integers lie in tiles of 8 x 128, or of fewer rows."""
    whole: Any = np.arange(1, 1 + np.prod(shape), dtype=np.int32).reshape(shape)
    flat = simulate.tiled(whole)
    rows = shape[-2] if len(shape) > 1 else 1
    high = next(size for size in (1, 2, 4, 8) if size >= min(rows, 8)) if len(shape) > 1 else 1
    across = -(-shape[-1] // 128)

    for place in np.ndindex(*shape):
        *outer, row, lane = (0, 0, *place)[-max(2, len(shape)) :]
        plane = int(np.ravel_multi_index(outer, shape[:-2])) if outer else 0
        tile = (plane * -(-rows // high) + row // high) * across + lane // 128
        assert whole[place] == flat[(tile * high + row % high) * 128 + lane % 128]


def timed(*events: Any, cycles: int, latency: float = 0.0) -> float:
    """The cycles of a run with these events, at 32 bytes a cycle: one granule."""
    whole = Run(cycles=cycles, events=events, visits={}, read={}, written={}, main=0, copies=0)
    return copies.waiting(whole, bytes_per_cycle=32, latency=latency)


def test_copies_take_their_time() -> None:
    """Copies are served in order, at the whole bandwidth; a wait ends with the last it needs."""
    first, second = (10, 1, 100, True), (20, 2, 50, True)
    taken = (1, -100)

    assert 300 == timed(first, (200, 1, 100), taken, cycles=300)
    assert 300 + 60 == timed(first, (50, 1, 100), taken, cycles=300)
    assert 300 + 60 + 5 == timed(first, (50, 1, 100), taken, cycles=300, latency=5)
    assert 300 + 110 == timed(first, second, (50, 2, 50), cycles=300)
    assert 300 + 60 == timed(first, (20, 2, 50, False), (30, 2, 50), (50, 1, 100), cycles=300)
    assert 300 + 60 + 50 == timed(
        first, (50, 1, 100), taken, (60, 1, 50, True), (60, 1, 50), cycles=300
    )  # the second one begins at 120
