"""Rung 0, the meaning of generation: run the whole model on the whole prefix for every token.

Nothing is kept between tokens but the tokens. Source: seed 004, section 1.
"""

from attrs import frozen

from spec import model
from spec.machines.actions import Append, Free, Name, Reserve, Sample
from spec.vocabulary import FinishReason, Params, Tokens
from spec.vocabulary.rules import INT32, PROMPT, a

Action = Reserve | Append | Sample | Free


@frozen
class State:
    """The texts so far, by name."""

    texts: frozenset[tuple[Name, Tokens]] = frozenset()


def step(state: State, action: Action) -> State:
    """Apply an action. Naming a text that is absent, or present for Reserve, is a KeyError."""
    texts = dict(state.texts)
    name = action.slot
    if name is None:  # nothing is chosen here
        raise KeyError(name)
    match action:
        case Reserve():
            if name in texts:
                raise KeyError(name)
            texts[name] = ()
        case Append(_, tokens):
            texts[name] += tokens
        case Sample(_, draw):
            texts[name] += (model.next_token(texts[name], draw),)
        case Free():
            del texts[name]
    return State(frozenset(texts.items()))


def finish(generated: Tokens, params: Params) -> FinishReason | None:
    """Why a text with these generated tokens has ended, if it has. A stop goes before a limit."""
    if any(generated[-len(stop) :] == stop for stop in params.stops):
        return FinishReason.STOP
    if len(generated) >= params.max_new:
        return FinishReason.LIMIT
    return None


def generate(prompt: Tokens, params: Params, choice: int = 0) -> tuple[Tokens, FinishReason]:
    """What one choice of a request must return, whatever else is being served."""
    PROMPT.require("prompt", prompt)
    a(Params).require("params", params)
    INT32.require("choice", choice)
    tokens = prompt
    while True:
        drawn = model.draw(params, choice=choice, position=len(tokens))
        tokens += (model.next_token(tokens, drawn),)
        reason = finish(tokens[len(prompt) :], params)
        if reason is not None:
            return tokens[len(prompt) :], reason
