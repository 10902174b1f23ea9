"""Limits whose queue has fewer entries than there are slots."""
from common import *
# docs/actions.md, `limits.queue`: at least one entry per slot. Four slots: three are too few,
# however narrow a round is; four will do. (With two, a request of three choices is accepted by
# Submit, and each Admit is refused: QUEUE_FULL.)
def made(queue, round_tokens):
    try: start(queue=queue, round_tokens=round_tokens)
    except InvalidInput as error: return error.name
    return "made"
seen("3 entries, rounds of 4", made(3, 4), "Limits.queue")
seen("4 entries, rounds of 2", made(4, 2), "made")
seen("3 entries, rounds of 2", made(3, 2), "Limits.queue")
seen("2 entries, rounds of 2", made(2, 2), "Limits.queue")
