"""Traces: strict reading of both formats, scaling of lengths, and repeatable prompts."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from conformance.traffic.traces import (
    MOST_BYTES,
    MOST_TOKENS,
    Totals,
    TraceRequest,
    load,
    prompt_tokens,
    scale,
    totals,
)
from spec.vocabulary.errors import InvalidInput

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:50.0000000,2,0"""
MOONCAKE = """\
{"timestamp": 0, "input_length": 513, "output_length": 500, "hash_ids": [0, 7]}
{"timestamp": 1500, "input_length": 1, "output_length": 0, "hash_ids": [3]}
"""
ROW = '{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 7]}'

Writer = Callable[[str | bytes], Path]


@pytest.fixture
def written(tmp_path: Path) -> Writer:
    """A function that writes a trace file and returns its path."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "trace.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(path: Path, format: str) -> InvalidInput:
    """The error that ends the reading of the whole file."""
    with pytest.raises(InvalidInput) as caught:
        list(load(path, format))
    return caught.value


def test_azure_rows_are_read_in_order_with_arrivals_since_the_first(
    written: Writer,
) -> None:
    """Azure rows keep their order, unsorted ones too, and a last line needs no line feed."""
    rows = list(load(written(AZURE), "azure"))

    assert [(374, 44), (396, 109), (2, 0)] == [row.lengths for row in rows]
    assert [0.0, 4.314579, 3.31941] == pytest.approx([row.arrival_seconds for row in rows])
    assert {None} == {row.blocks for row in rows}


def test_mooncake_rows_are_read_with_their_blocks(written: Writer) -> None:
    """Mooncake rows carry block ids, and their milliseconds become seconds."""
    assert [
        TraceRequest(0.0, 513, 500, (0, 7)),
        TraceRequest(1.5, 1, 0, (3,)),
    ] == list(load(written(MOONCAKE), "mooncake"))


def test_carriage_returns_before_line_feeds_are_no_part_of_a_row(written: Writer) -> None:
    """A file with Windows line ends reads the same."""
    rows = list(load(written(AZURE.replace("\n", "\r\n")), "azure"))

    assert 3 == len(rows)


@pytest.mark.parametrize(
    ("row", "allowed"),
    [
        ("2023-11-16 18:15:46.6805900,374", "three columns"),
        ("2023-11-16 18:15:46.6805900,374,44,9", "three columns"),
        ("", "three columns"),
        ("2023-11-16 18:15:46.6805900,374,", "GeneratedTokens|from 0"),
        ("2023-11-16 18:15:46.6805900,0,44", "from 1"),
        ("2023-11-16 18:15:46.6805900,-3,44", "from 1"),
        ("2023-11-16 18:15:46.6805900,3,-44", "from 0"),
        ("2023-11-16 18:15:46.6805900,3.5,44", "from 1"),
        ("2023-11-16 18:15:46.6805900, 3,44", "from 1"),
        ("2023-11-16 18:15:46.6805900,1_0,44", "from 1"),
        ("2023-11-16 18:15:46.6805900,\u0663,44", "from 1"),
        (f"2023-11-16 18:15:46.6805900,{MOST_TOKENS + 1},44", "from 1"),
        (f"2023-11-16 18:15:46.6805900,{'9' * 5000},44", "from 1"),
        ("2023-13-16 18:15:46.6805900,374,44", "TIMESTAMP"),
        ("2023-11-16 18:15,374,44", "TIMESTAMP"),
        ("yesterday,374,44", "TIMESTAMP"),
    ],
)
def test_a_bad_azure_row_is_refused_by_file_and_line(
    written: Writer, row: str, allowed: str
) -> None:
    """A malformed, truncated, negative or absurd Azure row names file, line and rule."""
    path = written(f"{AZURE}\n{row}\n{AZURE.splitlines()[1]}\n")

    error = refusal(path, "azure")

    assert f"{path}, line 5" == error.name
    assert any(part in str(error) for part in allowed.split("|"))
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("row", "allowed"),
    [
        (ROW[:-1], "one whole JSON object"),
        (ROW[:40], "one whole JSON object"),
        ("", "one whole JSON object"),
        ("[" * 100_000, "one whole JSON object"),
        ("[1]", "an object with the keys"),
        (ROW.replace("513", "9" * 5000), "one whole JSON object"),
        (ROW.replace('"timestamp": 0, ', ""), "an object with the keys"),
        (ROW.replace("}", ', "model": 1}'), "an object with the keys"),
        (ROW.replace("}", ', "timestamp": 1}'), "each key once"),
        (ROW.replace("513", '"513"'), "from 1"),
        (ROW.replace("513", "513.0"), "from 1"),
        (ROW.replace("513", "true"), "from 1"),
        (ROW.replace("513", "-513"), "from 1"),
        (ROW.replace("513", "0"), "from 1"),
        (ROW.replace("513", "NaN"), "from 1"),
        (ROW.replace("513", str(10**12)), "from 1"),
        (ROW.replace('_length": 5,', '_length": -1,'), "from 0"),
        (ROW.replace('"timestamp": 0', '"timestamp": -1'), "milliseconds"),
        (ROW.replace('"timestamp": 0', '"timestamp": 0.5'), "milliseconds"),
        (ROW.replace("[0, 7]", "[0]"), "2: one for every 512"),
        (ROW.replace("[0, 7]", "[0, 7, 8]"), "2: one for every 512"),
        (ROW.replace("[0, 7]", "[0, -7]"), "a list of integers"),
        (ROW.replace("[0, 7]", "[0, true]"), "a list of integers"),
        (ROW.replace("[0, 7]", "null"), "a list of integers"),
    ],
)
def test_a_bad_mooncake_row_is_refused_by_file_and_line(
    written: Writer, row: str, allowed: str
) -> None:
    """A malformed, truncated, mistyped or absurd Mooncake row names file, line and rule."""
    path = written(f"{MOONCAKE}{row}\n")

    error = refusal(path, "mooncake")

    assert f"{path}, line 3" == error.name
    assert allowed in str(error)
    assert len(str(error)) < 400


BLANKS = " \t\r\x0b\x0c\x1c\x85\xa0\u2028"
"""Characters that Python takes for blanks; JSON knows the first three."""


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_a_blank_is_no_part_of_a_row(written: Writer, blank: str) -> None:
    """Wherever it stands in an Azure row, the row is refused, but for the end of a line."""
    head, row, *_ = AZURE.splitlines()
    for at in range(len(row) + 1):
        changed = f"{row[:at]}{blank}{row[at:]}"
        path = written(f"{head}\n{row}\n{changed}\n{row}\n")

        if blank == "\r" and at == len(row):
            assert 3 == len(list(load(path, "azure")))
        else:
            assert f"{path}, line 3" == refusal(path, "azure").name, changed


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_a_blank_between_the_parts_of_json_is_one_of_json(written: Writer, blank: str) -> None:
    """Wherever it stands in a Mooncake row, the row is the same or is refused, as JSON says."""
    for at in range(len(ROW) + 1):
        changed = f"{ROW[:at]}{blank}{ROW[at:]}"
        path = written(f"{MOONCAKE}{changed}\n{ROW}\n")
        is_in_string = ROW[:at].count('"') % 2 == 1
        is_in_number = len(ROW[at - 1 : at + 1]) == 2 and ROW[at - 1 : at + 1].isdigit()

        if blank in " \t\r" and not is_in_string and not is_in_number:
            assert 4 == len(list(load(path, "mooncake"))), changed
        else:
            assert f"{path}, line 3" == refusal(path, "mooncake").name, changed


@pytest.mark.parametrize("format", ["azure", "mooncake"])
@pytest.mark.parametrize(
    ("content", "line", "allowed"),
    [
        (b"", 1, "at least one request"),
        (b"\xff\xfe", 1, "UTF-8 text"),
        (b"x" * (MOST_BYTES + 2), 1, f"{MOST_BYTES} bytes a line"),
    ],
)
def test_a_file_that_is_no_text_is_refused(
    written: Writer, format: str, content: bytes, line: int, allowed: str
) -> None:
    """An empty file, bytes that are no UTF-8 and endless lines are refused in both formats."""
    error = refusal(written(content), format)

    assert error.name.endswith(f"trace.txt, line {line}")
    assert allowed in str(error)


def test_a_header_without_rows_or_with_other_columns_is_refused(written: Writer) -> None:
    """An Azure file has exactly the three columns, and at least one row."""
    header = AZURE.splitlines()[0]

    without = refusal(written(f"{header}\n"), "azure")
    assert "no row after the header" in str(without)
    assert without.name.endswith(", line 2")
    assert "the header TIMESTAMP" in str(refusal(written("TIMESTAMP,ContextTokens\n"), "azure"))
    assert "the header TIMESTAMP" in str(refusal(written(MOONCAKE), "azure"))


def test_a_path_or_format_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing file and a folder are bad input, and an unknown format is even before reading."""
    assert "No such file" in str(refusal(tmp_path / "absent", "azure"))
    assert "directory" in str(refusal(tmp_path, "mooncake"))
    with pytest.raises(InvalidInput, match="azure or mooncake"):
        load(tmp_path / "absent", "csv")


def test_rows_before_a_bad_one_are_given(written: Writer) -> None:
    """Rows are read one by one, so that a truncated last line costs no other row."""
    reading = load(written(f"{MOONCAKE}{ROW[:30]}"), "mooncake")

    assert 2 == len(list(islice(reading, 2)))
    with pytest.raises(InvalidInput, match="line 3"):
        next(reading)


def test_lengths_scale_up_and_at_least_one_token_is_generated() -> None:
    """Lengths become ceil(n / divisor): 16 without blocks, 512 / page size with them."""
    assert (24, 3) == scale(TraceRequest(0.0, 374, 44, None))
    assert (1, 1) == scale(TraceRequest(0.0, 1, 0, None))
    assert (16, 1) == scale(TraceRequest(0.0, 512, 32, (5,)))
    assert (17, 2) == scale(TraceRequest(0.0, 513, 33, (5, 6)))
    assert (4, 1) == scale(TraceRequest(0.0, 512, 32, (5,)), page_size=4)
    assert (374, 44) == scale(TraceRequest(0.0, 374, 44, None), divisor=1)
    assert (24, 11) == scale(TraceRequest(0.0, 374, 44, None), new_divisor=4)
    assert (187, 4) == scale(TraceRequest(0.0, 374, 44, None), divisor=2, new_divisor=11)


@pytest.mark.parametrize("options", [{"page_size": 12}, {"page_size": 0}, {"divisor": 3}])
def test_blocks_that_would_not_scale_evenly_are_refused(options: dict[str, int]) -> None:
    """A page size or divisor that does not divide a block of 512 is bad input."""
    with pytest.raises(InvalidInput, match="power of two"):
        scale(TraceRequest(0.0, 512, 32, (5,)), **options)


def test_equal_prefix_ids_give_equal_tokens_and_other_ids_others() -> None:
    """Tokens depend on block id and offset alone, so that prompts share just their common ids."""
    long = prompt_tokens(0, 40, (1, 2, 3))
    other = prompt_tokens(9, 34, (1, 2, 4))

    assert long[:32] == other[:32]
    assert long[32:34] != other[32:34]
    assert long[:16] != long[16:32]
    assert long[16:32] == prompt_tokens(4, 16, (2,))


def test_without_ids_tokens_depend_on_the_request_alone() -> None:
    """A prompt without ids is repeatable, depends on the request, and extends with its length."""
    assert prompt_tokens(3, 20, None) == prompt_tokens(3, 20, None)
    assert prompt_tokens(3, 20, None)[:8] == prompt_tokens(3, 8, None)
    assert prompt_tokens(3, 20, None) != prompt_tokens(4, 20, None)
    assert prompt_tokens(3, 16, None) != prompt_tokens(0, 16, (3,))


def test_tokens_stay_in_the_vocabulary_and_use_it() -> None:
    """Every token is below the size of the vocabulary, and a small vocabulary is used evenly."""
    tokens = prompt_tokens(0, 4000, None, vocabulary=16)

    assert set(range(16)) == set(tokens)
    assert 400 > max(tokens.count(token) for token in range(16))


def test_the_made_up_tokens_never_change() -> None:
    """The first tokens are fixed, so that recorded runs stay comparable."""
    assert (1509, 16987, 2804, 32447, 13245) == prompt_tokens(0, 5, None)
    assert (23745, 25391, 24553, 12948, 11704) == prompt_tokens(0, 5, (0,))


def test_blocks_that_do_not_cover_the_length_are_refused() -> None:
    """Blocks that are scaled otherwise than the length are bad input, too many or too few."""
    for length in (33, 16):
        with pytest.raises(InvalidInput, match="same divisor"):
            prompt_tokens(0, length, (1, 2))


def test_totals_add_up() -> None:
    """Totals count requests and tokens, and find the longest request."""
    assert Totals(2, 30, 7, 25) == totals([(20, 5), (10, 2)])
    assert Totals(0, 0, 0, 0) == totals([])


@pytest.mark.parametrize(
    ("name", "format", "whole", "scaled"),
    [
        (
            "azure_conv_2023.csv",
            "azure",
            Totals(19_366, 22_361_870, 4_088_665, 14_089),
            Totals(19_366, 1_406_937, 264_502, 882),
        ),
        (
            "mooncake_conversation.jsonl",
            "mooncake",
            Totals(12_031, 144_793_823, 4_122_048, 126_527),
            Totals(12_031, 4_530_634, 134_770, 3_955),
        ),
    ],
)
def test_the_real_traces_read_whole(name: str, format: str, whole: Totals, scaled: Totals) -> None:
    """The published hours of traffic have the published sizes, before and after scaling."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"not checked: {name} is not beside this checkout")

    requests = list(load(path, format))

    assert whole == totals(request.lengths for request in requests)
    assert scaled == totals(scale(request) for request in requests)
    assert 0.0 == requests[0].arrival_seconds
    assert 3500 < requests[-1].arrival_seconds < 3600
