"""The exact model: no output of it survives a wrong cell, and draws depend on their names alone."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec import model
from spec.vocabulary import Params
from spec.vocabulary.integers import (
    KEY_FACTOR,
    KEY_SALTS,
    MIX_FACTORS,
    POSITION_FACTOR,
    TOKEN_FACTOR,
    VALUE_FACTOR,
    VALUE_SALTS,
    VOCABULARY,
)

words = st.integers(0, 2**32 - 1)
tokens = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12).map(tuple)
windows = st.integers(1, 13)
temperatures = st.integers(-1074, 1023).map(lambda exponent: 2.0**exponent)
"""Of every size that a float can have."""
steady = settings(derandomize=True, deadline=None)


def unmix(word: int) -> int:
    """The inverse of `mix`, written backwards: shifts fold back, odd factors are divided by."""
    word ^= word >> 16
    word = word * pow(MIX_FACTORS[1], -1, 2**32) % 2**32
    word ^= word >> 15 ^ word >> 30
    word = word * pow(MIX_FACTORS[0], -1, 2**32) % 2**32
    return word ^ word >> 16


def prefixes(text: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The correct read set of the last position."""
    return [text[: end + 1] for end in range(len(text))]


def hidden(
    token: int, read: list[tuple[int, ...]], *, first: int = 0, window: int | None = None
) -> int:
    """The last hidden state of `attend`, before it is cut down to the vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "unembed", lambda word, draw: word + draw)
        return model.attend(token, read, 0, first=first, window=window)


@steady
@given(words)
def test_mix_is_a_bijection(word: int) -> None:
    """Every word can be computed from its image."""
    assert word == unmix(model.mix(word))
    assert word == model.mix(unmix(word))


def test_factors_are_odd() -> None:
    """An odd factor is invertible modulo 2**32, so no change of one cell is multiplied away."""
    factors = (KEY_FACTOR, VALUE_FACTOR, TOKEN_FACTOR, POSITION_FACTOR, *MIX_FACTORS)

    assert [1] * 6 == [factor % 2 for factor in factors]


@steady
@given(tokens, words)
def test_attending_over_the_right_cells_is_recomputing(text: tuple[int, ...], draw: int) -> None:
    """The next token from cells with correct tags is that of the model run on the prefix."""
    assert model.next_token(text, draw) == model.attend(text[-1], prefixes(text), draw)
    assert 0 <= model.next_token(text, draw) < VOCABULARY


@steady
@given(tokens)
def test_a_cell_holds_what_the_whole_model_computes_there(text: tuple[int, ...]) -> None:
    """The contents of a tag are those of its last position in a run over the prefix."""
    ran = [cell for cell, _ in model.forward(text)]

    assert ran == [model.contents(tag) for tag in prefixes(text)]
    assert ran[-1] == model.contents(text)


@steady
@given(tokens, words, windows)
def test_attending_through_a_window_is_recomputing_with_it(
    text: tuple[int, ...], draw: int, window: int
) -> None:
    """The cells in the window of the last position suffice, and each of them matters."""
    first = max(0, len(text) - window)
    read = prefixes(text)[first:]
    right = hidden(text[-1], read, first=first, window=window)

    assert model.next_token(text, draw, window) == model.unembed(right, draw)
    assert len(read) == 1 or right != hidden(text[-1], read[1:], first=first + 1, window=window)
    assert first == 0 or right != hidden(text[-1], prefixes(text), window=window)
    ran = [cell for cell, _ in model.forward(text, window)]
    assert ran == [model.contents(tag, window) for tag in prefixes(text)]
    if window >= len(text):
        assert ran == [model.contents(tag) for tag in prefixes(text)]


@pytest.mark.parametrize("window", [None, 1, 2, 3])
@pytest.mark.parametrize("limit", [1, 3, 8])
def test_contents_do_not_depend_on_what_was_asked_before(
    limit: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full cache changes no contents, whichever prefixes have been asked for, in any order."""
    texts = [tuple(range(first, first + 9)) for first in range(4)]
    asked = [text[: length + 1] for text in texts for length in range(9)] * 3
    Random(limit).shuffle(asked)
    right = {text: [cell for cell, _ in model.forward(text, window)] for text in texts}
    monkeypatch.setattr(model, "_memories", {})
    monkeypatch.setattr(model, "_MEMORY_LIMIT", limit)

    for tag in asked:
        assert right[texts[tag[0]]][len(tag) - 1] == model.contents(tag, window)


@steady
@given(tokens, st.data())
def test_every_cell_read_matters(text: tuple[int, ...], data: st.DataObject) -> None:
    """Another tag, another order, one cell more or less: each gives another hidden state."""
    read = prefixes(text)
    right = hidden(text[-1], read)
    index = data.draw(st.integers(0, len(read) - 1))
    other = data.draw(tokens.filter(lambda tag: tag != read[index]))

    assert right != hidden(text[-1], [*read[:index], other, *read[index + 1 :]])
    assert right != hidden(text[-1], [*read, other])
    assert right != hidden(text[-1], read[:index] + read[index + 1 :]) or len(read) == 1
    if len(read) > 1:
        assert right != hidden(text[-1], read[::-1])


@steady
@given(tokens, words.filter(bool), st.data())
def test_every_part_of_a_cell_matters(
    text: tuple[int, ...], change: int, data: st.DataObject
) -> None:
    """K or V of either layer, wrong by any amount in any one cell, changes the attention sum."""
    cells = [model.contents(tag) for tag in prefixes(text)]
    index = data.draw(st.integers(0, len(cells) - 1))
    key, value = cells[index][:2]
    right = [model.word(*cell[:2]) for cell in cells]

    for wrong in ((key + change, value), (key, value + change)):
        changed = [*right[:index], model.word(*wrong), *right[index + 1 :]]
        assert (model.total(right) - model.total(changed)) % 2**32


@steady
@given(words, words, st.integers(0, 1))
def test_layers_and_positions_differ(one: int, other: int, layer: int) -> None:
    """Different hidden states have different K and different V in each layer."""
    left, right = model.project(one, layer), model.project(other, layer)

    assert (one == other) == (left[0] == right[0]) == (left[1] == right[1])
    assert model.project(one, 0) != model.project(one, 1)


@steady
@given(
    st.integers(0, 2**31 - 1),
    st.integers(0, 99),
    st.integers(0, 9999),
    temperatures,
    st.integers(1, 9),
)
def test_a_draw_depends_on_seed_choice_and_position_alone(
    seed: int, choice: int, position: int, temperature: float, max_new: int
) -> None:
    """Limits, stops and temperature do not enter a draw; each of the three names does."""
    plain = Params(max_new=1, temperature=1.0, seed=seed)
    drawn = model.draw(plain, choice=choice, position=position)
    rich = Params(max_new=max_new, stops=((1,),), temperature=temperature, seed=seed)
    reseeded = Params(max_new=1, temperature=1.0, seed=seed ^ 1)

    assert drawn == model.draw(rich, choice=choice, position=position)
    assert drawn != model.draw(plain, choice=choice + 1, position=position)
    assert drawn != model.draw(plain, choice=choice, position=position + 1)
    assert drawn != model.draw(reseeded, choice=choice, position=position)
    assert 0 == model.draw(Params(max_new=1, seed=seed), choice=choice, position=position)


def test_two_tokens_by_hand() -> None:
    """The first hidden state of token 0 at position 0 is mix(1), and the model is built from it."""
    first = model.mix(1)
    assert first == model.embed(0, 0)

    key, value = model.project(first, 0)
    assert (key, value) == (model.mix(first + KEY_SALTS[0]), model.mix(first + VALUE_SALTS[0]))
    second = model.mix(first + KEY_FACTOR * key + VALUE_FACTOR * value)
    deep = model.project(second, 1)
    last = model.mix(second + KEY_FACTOR * deep[0] + VALUE_FACTOR * deep[1])

    assert (key, value, *deep) == model.contents((0,))
    assert last % 2**32 == hidden(0, [(0,)])
    assert model.mix(last + 5) % VOCABULARY == model.next_token((0,), 5)


def test_a_log_probability_is_that_of_what_the_window_shows() -> None:
    """With a window of 1 it depends on one token and its position, without one on the prefix."""
    assert model.logprobs((1, 2, 9), (4,), 1) == model.logprobs((5, 6, 9), (4,), 1)
    assert model.logprobs((1, 2, 9), (4,)) != model.logprobs((5, 6, 9), (4,))
    assert max(model.logprobs((1, 2, 9), (4, 5, 6))) < 0
