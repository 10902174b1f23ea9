"""The kernel bench: batches, needles, metamorphic twins, processes, planted bugs, the command."""

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from attrs import asdict, evolve, fields
from deep import deep_after
from hypothesis import given, settings

from conformance.cli import main
from conformance.kernels import answers, interpret, jobs, metamorphic, processes, trials
from conformance.kernels.batches import SIZES, Arrays, Batch, Needle, Sizes, build, drawn
from conformance.kernels.block_sizes import variants
from conformance.kernels.kernel_under_test import KNOWN, TOLD, find, find_appending
from conformance.kernels.processes import Tried
from conformance.kernels.seeded_bugs import MUTANTS, planted
from conformance.kernels.trials import AT_EDGES, Job
from conformance.mutation.judges import gates
from impl.attention.tpu import shape_of
from impl.attention.tpu.shape import Shape
from impl.cache.rows import lanes
from spec.vocabulary.errors import InvalidInput

WINDOWED = SIZES[2]
LENS = ((1, 40), (3, 37))
STALL = 20.0
TPU_INFERENCE = KNOWN["tpu-inference"]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes import the toy kernels."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "tools"))


def quiet(done: float, note: str) -> None:
    """Discard the progress."""
    del done, note


def answer(sizes: Sizes, arrays: Arrays) -> Any:
    """The answer of the oracle, in float64."""
    return answers.right(sizes, arrays).answer


@pytest.mark.parametrize("sizes", deep_after(2, SIZES), ids=lambda sizes: sizes.name)
def test_every_batch_can_be_answered(sizes: Sizes) -> None:
    """The oracle's answer and bound are finite for every batch."""

    @settings(max_examples=2 if sizes.tokens > 256 else 8, deadline=None)  # 3 s for each of those
    @given(drawn(sizes, units=(64,)))
    def holds(batch: Batch) -> None:
        assert batch == Batch.from_json(json.loads(json.dumps(batch.to_json())))
        found = answers.right(sizes, build(sizes, batch))
        assert np.isfinite(found.answer).all()
        assert np.isfinite(found.bound).all()

    holds()


def kinds(shape: Shape) -> Iterator[tuple[str, object]]:
    """What a kernel of this shape decides while it is traced; a number is 1, 2 or more.

    Then what its loops, its blocks and its numbers are, and with how many heads 8 bits come apart.
    """
    derived = [name for name, one in vars(Shape).items() if isinstance(one, property)]
    for name in (*derived, *(each.name for each in fields(Shape) if each.type in {bool, "bool"})):
        value = getattr(shape, name)
        if isinstance(value, int):
            yield name, min(value, 3)
    for name in ("kv_heads", "group", "cores"):
        yield name, min(getattr(shape, name), 3)
    for name in ("q_dtype", "kv_dtype", "compute"):
        yield name, str(jnp.dtype(getattr(shape, name)))
    yield "decode_steps", shape.blocks.decode_steps
    yield "many queries in a block", shape.blocks.q_rows > 128
    yield "one page in a fetch", shape.blocks.kv_pages == 1
    yield "wide heads", shape.width > 128
    if shape.packing == 4:
        yield "heads in 8 bits", min(shape.kv_heads, 4)
        yield "new cells in 8 bits, widened", shape.fresh and not shape.byte_products


def planned(
    heads: tuple[int, int, int],
    dtypes: tuple[str, str],
    sizes: tuple[int, int, int, int, int],
    **options: Any,
) -> Shape:
    """The shape of a call. sizes: tokens, rows, pages of a row, pages, page size."""
    tokens, rows, row, pages, size = sizes
    q = np.broadcast_to(np.zeros((), jnp.dtype(dtypes[0])), (tokens, heads[0], heads[2]))
    pool = np.zeros((), jnp.dtype(dtypes[1]))
    pool = np.broadcast_to(pool, (pages, size * heads[1], lanes(heads[2])))
    table = np.broadcast_to(np.int32(0), (rows, row))
    return shape_of(q, pool, table, page_size=size, **options)


@pytest.mark.deep
def test_the_shapes_are_of_every_kind_that_drawn_points_have() -> None:
    """Whatever the kernel decides by its static shape, the bench has jobs of either kind."""
    tried, drawn_ones = set[tuple[str, object]](), set[tuple[str, object]]()
    for job in jobs.plan(find("tpu"), cases=4, seed=0).jobs:
        one = job.shape
        sizes = (one.tokens, one.rows, one.pages_per_seq, one.pages, one.page_size)
        own = {"chip": interpret.CHIP, **variants("tpu", one)[job.variant][0], **one.options}
        tried.update(kinds(planned(one.heads, one.kinds, sizes, append=job.append, **own)))
    for cell in filter(gates.has_blocks, gates.drawn(600)):
        heads = (cell.heads.q, cell.heads.kv, cell.heads.dim)
        sizes = (cell.tokens, cell.seqs, cell.pages_per_seq, cell.pages, cell.page_size)
        own = {"chip": cell.chip, "append": cell.append}
        drawn_ones.update(kinds(planned(heads, (cell.q, cell.kv), sizes, **own)))

    assert {("byte_products", True), ("byte_products", False)} <= drawn_ones
    assert set() == drawn_ones - tried


@pytest.mark.parametrize(
    ("where", "seen"),
    [
        (Needle.LAST, False),
        (Needle.PAST, False),
        (Needle.NEXT, False),
        (Needle.OWN, True),
        (Needle.BEHIND, False),
        (Needle.OLDEST, True),
    ],
)
def test_a_needle_is_seen_where_it_should_be(*, where: Needle, seen: bool) -> None:
    """The first of three queries answers with the value of the needle exactly if it may see it."""
    batch = Batch(lens=LENS, needles=((1, 0, where),))
    arrays = build(WINDOWED, batch)
    values = arrays.kv_pages[..., 1::2, :]
    loudest = np.nanmax(np.abs(answer(WINDOWED, arrays)[1]))

    assert 4.0 == np.nanmax(np.abs(np.where(np.abs(values) == 4.0, values, 0.0)))
    assert seen == bool(loudest > 3.9)


def test_a_needle_behind_the_window_shows_what_the_public_tolerance_lets_pass() -> None:
    """One key too many is outside the bound, but with plain values inside the public tolerance."""
    longer = evolve(WINDOWED, options={**WINDOWED.options, "sliding_window": 17})
    plain, needled = (
        Batch(lens=LENS, plain=True),
        Batch(lens=LENS, needles=((1, 0, Needle.BEHIND),)),
    )
    verdicts = []
    for batch in (plain, needled):
        arrays = build(WINDOWED, batch)
        arrays.kv_pages[np.isnan(arrays.kv_pages)] = 0.0
        wrong, right = answer(longer, arrays), answers.right(WINDOWED, arrays)
        verdicts.append((right.tolerated(wrong, rows=4), right.ratio(wrong, rows=4) > 1.0))

    assert (False, True) == verdicts[1]
    assert verdicts[0][1]


def test_nan_is_infinitely_wrong_and_rows_of_nobody_are_free() -> None:
    """NaN has an infinite error, and rows past the last sequence are not judged."""
    right = answers.right(WINDOWED, build(WINDOWED, Batch(lens=LENS)))
    found = right.answer.copy()
    found[4:] = np.nan

    assert 0.0 == right.ratio(found, rows=4)
    found[3, 0, 0] = np.nan
    assert float("inf") == right.ratio(found, rows=4)


@pytest.mark.parametrize(
    ("error", "bound", "share"),
    [
        (0.0, 0.0, 0.0),
        (1e-300, 0.0, np.inf),
        (0.0, 0.25, 0.0),
        (0.125, 0.25, 0.5),
        (-0.5, 0.25, 2.0),
        (1.0, np.inf, 0.0),
        (np.nan, 0.25, np.inf),
        (np.nan, np.inf, np.inf),
        (np.nan, 0.0, np.inf),
        (np.inf, 0.25, np.inf),
    ],
)
def test_an_error_is_a_share_of_its_bound(error: float, bound: float, share: float) -> None:
    """Where the bound is 0 any error is infinitely wrong, and NaN is so everywhere."""
    bounds = np.array([[[1.0, 1.0]], [[1.0, bound]], [[0.0, 0.0]]])
    right = answers.Right(np.zeros((3, 1, 2)), bounds, lambda _tokens: 2 * bounds)
    found = np.array([[[0.0, 0.0]], [[0.0, error]], [[7.0, 7.0]]])

    assert share == right.ratio(found, rows=2)
    assert share / 2 == right.looseness(found, rows=2)
    assert 0.0 == right.ratio(found, rows=1)


def test_what_is_loose_is_looked_for_in_the_tokens_nearest_to_their_bound() -> None:
    """The second bound is computed for these alone, and the largest share of it is told."""
    asked: list[set[int]] = []

    def likely(tokens: Collection[int]) -> Any:
        asked.append({*tokens})
        return np.full((9, 1, 2), 0.25)

    right = answers.Right(np.zeros((9, 1, 2)), np.ones((9, 1, 2)), likely)
    found = np.zeros((9, 1, 2))
    found[[7, 2, 4, 0, 8], 0, 1] = 0.5, -0.4, 0.3, 0.2, 0.1

    assert 2.0 == right.looseness(found, rows=9)
    assert 0.4 / 0.25 == right.looseness(found, rows=7)
    assert 0.0 == right.looseness(found, rows=0)
    assert [{7, 2}, {2, 4}] == asked


@pytest.mark.parametrize("twin", metamorphic.TWINS)
def test_a_twin_has_the_same_answer(twin: str) -> None:
    """By the oracle, a metamorphic twin has the same answer as its batch."""
    batch = Batch(lens=((1, 40), (3, 37), (0, 5), (16, 16)), shared=(1,), seed=3)
    arrays = build(WINDOWED, batch)
    there, laid = (
        metamorphic.other(WINDOWED, twin),
        metamorphic.laid_out(WINDOWED, batch, arrays, twin),
    )

    found = metamorphic.in_order(WINDOWED, batch, twin, answer(there, laid))

    np.testing.assert_allclose(answer(WINDOWED, arrays)[:20], found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["nowhere", "no.such:thing", "math:nothing", "math:pi", ":"])
def test_a_kernel_that_cannot_be_found_is_refused(name: str) -> None:
    """A kernel that cannot be found is refused with the allowed form."""
    with pytest.raises(InvalidInput, match="MODULE:FUNCTION"):
        find(name)


@pytest.mark.deep
@pytest.mark.usefixtures("toys")
def test_every_end_of_a_process_is_told_apart() -> None:
    """A pass, a finding, a hang, a death and a refusal are reported as different ends."""
    planned = [
        Job(kernel=f"kernel_toys:{name}", sizes=WINDOWED.name, cases=16)
        for name in ("right", "window_too_long", "choosy")
    ]
    planned += [
        Job(kernel=f"kernel_toys:{name}", sizes=SIZES[0].name, cases=30)
        for name in ("deaf", "mortal")
    ]

    every = [Tried(job) for job in planned]
    processes.make_all(every, update=quiet, stall=STALL)

    passed, wrong, choosy, hangs, died = every
    every_batch = 2 + 2 * AT_EDGES + 16
    assert ("passed", every_batch, False) == (passed.ended, passed.answered, passed.wrong)
    assert 10 < passed.cases < passed.answered
    assert passed.ratio < 1.0
    assert ("finding", ["wrong"], True) == (wrong.ended, wrong.what, wrong.wrong)
    assert wrong.batch is not None
    assert 1 == len(wrong.batch["lens"])
    assert wrong.batch["lens"][0][0] <= 2
    assert ("hangs", 2, True) == (hangs.ended, hangs.answered, hangs.wrong)
    assert ("died", 2, True) == (died.ended, died.answered, died.wrong)
    assert (True, False) == (choosy.undecided, choosy.wrong)
    assert "NotImplementedError: no such head_dim" == choosy.text


def test_progress_leaves_out_the_batches_of_shrinking() -> None:
    """So many batches are done as were planned, at most; all of them when a job has ended."""
    tried = Tried(Job(kernel="tpu", sizes=SIZES[0].name, cases=3))
    done = []
    for _ in range(6):
        done.append(tried.done)
        tried.take({"ratio": 2.0, "looseness": 0.0, "rows": 1})

    assert [0, 1, 2, 3, 3, 3] == done
    early = Tried(tried.job, ended="finding", cases=1)
    assert 3 == early.done


@pytest.mark.deep
@pytest.mark.usefixtures("toys")
def test_scores_of_which_exp_overflows_are_tried() -> None:
    """A softmax without the maximum is wrong for steep batches, and right for all others."""
    job = Job(kernel="kernel_toys:without_maximum", sizes=SIZES[0].name, cases=20)
    found = Tried(job)
    processes.make_all([found], update=quiet)

    assert ("finding", ["wrong"]) == (found.ended, found.what)
    assert found.batch is not None
    assert found.batch["steep"]
    assert found.answered > 2


@pytest.mark.deep
@pytest.mark.usefixtures("toys")
def test_a_function_of_somebody_else_is_called_as_it_is() -> None:
    """Each call runs its Python, though it has a Pallas kernel: traced once it would be right."""
    one = Tried(Job(kernel="kernel_toys:wrong_later", sizes=SIZES[0].name, cases=9, shrink=False))
    processes.make_all([one], update=quiet, stall=STALL)

    assert ("finding", ["wrong"]) == (one.ended, one.what), one.text
    assert one.answered >= 3


@pytest.mark.parametrize("name", ["reference", "tpu", "jax", TPU_INFERENCE])
def test_settings_are_the_parameters_that_are_no_arrays(name: str) -> None:
    """Those that are given by name, and no array; so a traced kernel gets them as they are."""
    for subject in filter(None, (find(name), find_appending(name))):
        settings = set(subject.settings)

        arrays = {"sinks", "scales"}
        assert settings.isdisjoint({"q", "kv_pages", "kv_lens", "keys", "values", *arrays})
        assert set(subject.names.values()) - arrays <= settings
        assert settings.intersection(TOLD) == subject.told
        assert subject.of_rows == (name == "tpu")


CAUGHT_SOON = (
    "pages are not waited for",
    "each core takes every block",  # a race, which only cores side by side show
    "the end of a long row",  # which only the block sizes of a plain call show
    "sequences past 127",  # which only a large batch shows
)
"""Some of the planted bugs; `make kernel` runs all of them."""


@pytest.mark.deep
def test_planted_bugs_are_caught() -> None:
    """Planted bugs are caught, and the kernel without a bug passes."""
    planned = jobs.of_mutants(cases=40, names=CAUGHT_SOON)
    control = Tried(Job(kernel="tpu", sizes=SIZES[0].name, cases=3))

    every = [Tried(job) for job in planned]
    processes.make_all([control, *every], update=quiet)

    assert "passed" == control.ended
    assert dict.fromkeys(CAUGHT_SOON, True) == {one.job.mutant: one.wrong for one in every}


def test_a_bug_is_planted_and_taken_out_again() -> None:
    """Each bug replaces an existing function, restored at the end, for block sizes that exist."""
    for name, mutant in MUTANTS.items():
        (sizes,) = (one for one in SIZES if one.name == mutant.sizes)
        assert mutant.variant < len(variants("tpu", sizes)), name
        before = mutant.place.__dict__[mutant.name]
        with planted(name):
            assert before is not mutant.place.__dict__[mutant.name]
        assert before is mutant.place.__dict__[mutant.name]
    with pytest.raises(InvalidInput, match="mutant"), planted("no such bug"):
        pass
    assert len(MUTANTS) >= 30


@pytest.mark.deep
@pytest.mark.usefixtures("toys")
def test_what_nobody_can_say_is_undecided() -> None:
    """A slow start, a kill from outside and a wrong shape are undecided."""
    planned = [
        Job(kernel=f"kernel_toys:{name}", sizes=SIZES[0].name, cases=2)
        for name in ("never", "killed", "short", "haunted")
    ]
    every = [Tried(job) for job in planned]
    processes.make_all(every, update=quiet, stall=STALL / 2)

    assert ["slow", "killed", "raised", "passed"] == [one.ended for one in every]
    assert [True, True, True, False] == [one.undecided for one in every]
    assert not any(one.wrong for one in every)
    assert "ValueError: the answer has the shape (3,), not (60, 8, 128)" == every[2].text


@pytest.mark.deep
@pytest.mark.usefixtures("toys")
def test_what_is_not_a_wrong_answer_has_a_name_of_its_own() -> None:
    """NaN behind a window, a page past the pool, a race and a broken promise have their names."""
    job = Job(kernel="kernel_toys:masks_scores", sizes=WINDOWED.name, cases=30, shrink=False)
    outside = Job(kernel="kernel_toys:reads_outside", sizes=SIZES[0].name, shrink=False)
    race = Job(kernel="kernel_toys:both_write", sizes=SIZES[0].name, mode="eager", shrink=False)
    broken = Job(kernel="kernel_toys:promises_more", sizes=SIZES[0].name, shrink=False)
    found = [Tried(job), Tried(outside), Tried(race), Tried(broken)]
    processes.make_all(found, update=quiet)

    names = [["reads_behind_window"], ["out_of_bounds"], ["race"], ["misaligned"]]
    assert names == [one.what for one in found]


@pytest.mark.deep
def test_races_are_looked_for_only_if_one_is_found() -> None:
    """The detector of races finds the control: a copy into memory that is being read."""
    assert processes.sees_races()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that replaces processes by results: each job ends as a given function says."""

    def put(end: Callable[[Job], Tried], *, races: bool = True) -> None:
        def make_all(every: list[Tried], **_: object) -> None:
            for one in every:
                for name, value in asdict(end(one.job), recurse=False).items():
                    setattr(one, name, value)

        monkeypatch.setattr(processes, "make_all", make_all)
        monkeypatch.setattr(processes, "sees_races", lambda: races)

    return put


def test_the_command_keeps_the_contract(
    tmp_path: Path, made: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command holds, fails with the case and its cause, or is undecided if no case ran."""
    target = tmp_path / "k.json"
    words = ["kernel", "tpu", "--cases", "3", "--json", str(target)]

    made(lambda job: Tried(job, 4, 0.5, "passed", pallas=True))
    assert 0 == main.main(words)
    found = json.loads(target.read_text(encoding="utf-8"))
    assert (0, 0, 0.5) == (found["races"], found["out_of_bounds"], found["max_error_over_bound"])
    assert 4 * len(jobs.plan(find("tpu"), cases=4, seed=0).jobs) == found["cases"]

    one = Batch(lens=((1, 1),)).to_json()
    made(lambda job: Tried(job, 2, 0.5, "finding", ["race"], one, pallas=True))
    assert 1 == main.main(words)
    found = json.loads(target.read_text(encoding="utf-8"))
    planned = jobs.plan(find("tpu"), cases=4, seed=0).jobs
    assert sum(job.mode == "eager" for job in planned) == found["races"]
    assert one == found["findings"][0]["batch"]
    assert "FAILS: grouped heads (block sizes 0, copies on_wait): race" in capsys.readouterr().out

    def one_passes(job: Job) -> Tried:
        ended = "passed" if job.twin == "order" else "raised"
        return Tried(job, 0, 0.0, ended, text="ValueError: no")

    made(one_passes)
    assert 3 == main.main(words)
    assert "grouped heads, in part or whole: raised: ValueError: no" in capsys.readouterr().out


def test_what_is_loose_is_told_and_decides_nothing(
    tmp_path: Path, made: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Loose batches are reported by shape with the worst batch; wrong batches are not counted."""
    target = tmp_path / "k.json"
    one, other = (Batch(lens=((1, cells),)).to_json() for cells in (900, 800))

    def end(job: Job) -> Tried:
        tried = Tried(job, ended="passed", pallas=True)
        alone = job.mode == "on_wait" and not job.variant and not job.append
        last = alone and job.sizes == SIZES[-1].name
        for batch, looseness in ((other, 1.5), (one, 2.5), (other, 0.9)):
            tried.take({"begin": batch})
            tried.take({"ratio": 0.2, "looseness": looseness if last else 0.6, "rows": 1})
        tried.take({"ratio": 1.1, "looseness": 3.0, "rows": 0})
        return tried

    made(end)
    assert 0 == main.main(["kernel", "tpu", "--json", str(target)])
    found = json.loads(target.read_text(encoding="utf-8"))
    (loose,) = found["loose"]
    assert (SIZES[-1].name, 2, 3, one) == tuple(
        loose[name] for name in ("sizes", "batches", "cases", "batch")
    )
    assert 1.1 == found["shapes"][SIZES[0].name]["max_error_over_bound"]
    assert "2 of 3 batches, at most 2.5 times what rounding" in capsys.readouterr().out


def test_what_could_not_be_looked_for_is_said(tmp_path: Path, made: Callable[..., None]) -> None:
    """Options that a kernel lacks, and races that cannot be detected, are listed as not checked."""
    target = tmp_path / "k.json"

    made(lambda job: Tried(job, 4, 0.5, "passed"))
    assert 0 == main.main(["kernel", "reference", "--json", str(target)])
    found = json.loads(target.read_text(encoding="utf-8"))
    assert found["races"] is None
    assert found["out_of_bounds"] is None
    assert "fp8 with scales: the function does not take k_scale, v_scale" in found["not_checked"]

    made(lambda job: Tried(job, 4, 0.5, "passed", pallas=True), races=False)
    assert 0 == main.main(["kernel", "tpu", "--json", str(target)])
    found = json.loads(target.read_text(encoding="utf-8"))
    assert found["races"] is None
    assert "races: this jax does not detect the race of the control" in found["not_checked"]


def test_the_command_scores_mutants(
    made: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command fails if a bug is not caught, or if a case fails without a bug."""

    def end(job: Job) -> Tried:
        missed = job.plain or job.mutant in {None, "no cap"}
        return Tried(job, 3, 0.5, "passed" if missed else "finding", [])

    made(end)
    assert 1 == main.main(["kernel", "tpu", "--mutants"])
    said = capsys.readouterr().out
    assert "FAILS: no cap: not caught in 3 cases" in said
    assert "  no cap (soft cap dropped) " in said
    made(lambda job: Tried(job, 3, 0.5, "finding" if job.mutant else "passed"))
    assert 0 == main.main(["kernel", "tpu", "--mutants"])


ENDS = ("finding", "hangs", "died", "raised", "slow", "killed", "broken")
"""How the trial of a kernel may end, other than by passing."""


@pytest.mark.parametrize("cases", [0, 3])
@pytest.mark.parametrize("how", ENDS)
def test_a_kernel_without_a_bug_must_pass_beside_the_planted_ones(
    how: str, cases: int, made: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """However else it ends, nothing is known of what was caught."""
    made(lambda job: Tried(job, 3, 0.5, "finding") if job.mutant else Tried(job, cases, 0.5, how))

    assert 1 == main.main(["kernel", "tpu", "--mutants"])
    assert "FAILS: without a bug: grouped heads" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere"],
        ["tpu", "--target", "v3"],
        ["tpu", "--target", "v5e", "--shapes", "llama-9"],
        ["tpu", "--target", "v5e", "--shapes", "llama-3-8b", "--page-sizes", "x"],
        ["tpu", "--cases", "0"],
        ["tpu", "--baseline", "k.json"],
        ["tpu", "--target", "v5e", "--kv", "int8"],
        ["tpu", "--append"],
        ["jax", "--target", "v5e", "--append"],
        ["tpu", "--mutants", "--target", "v5e"],
        ["reference", "--mutants"],
    ],
)
def test_bad_usage_of_kernel_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Bad usage is one line with the allowed values."""
    assert 2 == main.main(["kernel", *words])
    assert 1 == capsys.readouterr().err.count("\n")


def test_a_process_writes_what_it_tries(tmp_path: Path) -> None:
    """A process records each batch before it runs, in case it hangs, and its ratio afterwards."""
    job = Job(kernel="reference", sizes=WINDOWED.name, results=str(tmp_path / "lines"), cases=2)
    own, _ = variants(job.kernel, job.shape)[0]

    trials.Trial(job, find("reference"), own).check(Batch(lens=LENS))

    first, second = map(json.loads, Path(job.results).read_text(encoding="utf-8").splitlines())
    assert [[1, 40], [3, 37]] == first["begin"]["lens"]
    assert 0.0 <= second["ratio"] <= 1.0


@pytest.mark.usefixtures("toys")
def test_a_finding_is_written_as_one_file(tmp_path: Path, made: Callable[..., None]) -> None:
    """The script of a finding runs without kvspec, and fails with the wrong kernel alone."""
    path, batch = tmp_path / "shows.py", Batch(lens=LENS, needles=((1, 0, Needle.BEHIND),))

    def end(job: Job) -> Tried:
        found = job.sizes == WINDOWED.name and job.mode == "on_wait"
        ended, what = ("finding", ["wrong"]) if found else ("passed", [])
        return Tried(job, 3, 0.5, ended, what, batch.to_json())

    made(end)
    assert 1 == main.main(["kernel", "kernel_toys:window_too_long", "--reproduce", str(path)])
    text = path.read_text(encoding="utf-8")
    right = tmp_path / "right.py"
    right.write_text(text.replace("import window_too_long as", "import right as"), encoding="utf-8")
    for file, status in ((path, 1), (right, 0)):
        ran = subprocess.run(
            [sys.executable, file], capture_output=True, text=True, check=False, timeout=120
        )
        assert status == ran.returncode, ran.stderr
        assert "largest error over bound:" in ran.stdout
