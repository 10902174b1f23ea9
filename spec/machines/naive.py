"""Rung naive, the meaning of generation: run the whole model on the whole prefix for every token.

Only the tokens are kept from one step to the next. Source: docs/sources.md, "Naive decoding".
"""

from spec import model
from spec.machines.actions import Append, Free, Name, Reserve, Sample
from spec.rung import Faults, Machine, Pages, Rule, Rung, check, in_order
from spec.state import State
from spec.vocabulary import FinishReason, Params, Reason, Tokens
from spec.vocabulary.rules import INT32, PROMPT, a


def finish(generated: Tokens, params: Params) -> FinishReason | None:
    """Why a text with these generated tokens has ended, or None. A stop precedes a limit."""
    if any(generated[-len(stop) :] == stop for stop in params.stops):
        return FinishReason.STOP
    if len(generated) >= params.max_new:
        return FinishReason.LIMIT
    return None


def generate(
    prompt: Tokens, params: Params, choice: int = 0, *, window: int | None = None
) -> tuple[Tokens, FinishReason]:
    """The output that a choice of a request must have, whatever else is served: tokens, reason."""
    PROMPT.require("prompt", prompt)
    a(Params).require("params", params)
    INT32.require("choice", choice)
    tokens = prompt
    while True:
        drawn = model.draw(params, choice=choice, position=len(tokens))
        tokens += (model.next_token(tokens, drawn, window),)
        reason = finish(tokens[len(prompt) :], params)
        if reason is not None:
            return tokens[len(prompt) :], reason


def _reserve(_machine: Machine, state: State, action: Reserve, _pages: Pages | None) -> State:
    assert action.slot is not None
    return _with_text(state, action.slot, ())


def _append(_machine: Machine, state: State, action: Append, _pages: Pages | None) -> State:
    return _with_text(state, action.slot, dict(state.texts)[action.slot] + action.tokens)


def _sample(_machine: Machine, state: State, action: Sample, _pages: Pages | None) -> State:
    text = dict(state.texts)[action.slot]
    token = model.next_token(text, action.draw, state.geometry.window)
    return _with_text(state, action.slot, (*text, token))


def _free(_machine: Machine, state: State, action: Free, _pages: Pages | None) -> State:
    texts = frozenset(item for item in state.texts if item[0] != action.slot)
    return state._replace(texts=texts)


def _with_text(state: State, name: Name, text: Tokens) -> State:
    return state._replace(texts=frozenset((dict(state.texts) | {name: text}).items()))


@check(Reason.SLOT_RANGE)
def _named(_machine: Machine, _state: State, action: Reserve) -> Faults:
    """The text is given no name."""
    if action.slot is None:
        yield None, "the name of a text"


@check(Reason.SLOT_USED)
def _new(_machine: Machine, state: State, action: Reserve) -> Faults:
    """A text has this name."""
    if action.slot in dict(state.texts):
        yield action.slot, "a name that no text has"


@check(Reason.SLOT_UNUSED)
def _text(_machine: Machine, state: State, action: Append | Sample | Free) -> Faults:
    """No text has this name."""
    if action.slot not in dict(state.texts):
        yield action.slot, "the name of a text"


RUNG = Rung(
    name="naive",
    owns=("texts",),
    rules={
        Reserve: Rule(stages=in_order(_named, _new), effect=_reserve),
        Append: Rule(stages=in_order(_text), effect=_append),
        Sample: Rule(stages=in_order(_text), effect=_sample),
        Free: Rule(stages=in_order(_text), effect=_free),
    },
)
