"""A sequence stops when its generated tokens end with a stop sequence; the prompt is not searched. A
stop of two tokens, of which the first is the end of the prompt, cannot be completed by the first
generated token: the sequence goes on to its limit of two tokens.
"""
from common import *
from spec.machines import naive

prompt = (1, 2, 3)
free = Params(max_new=2)
first, second = naive.generate(prompt, free)[0]
params = Params(max_new=2, stops=((3, first),))
seen("alone", naive.generate(prompt, params), ((first, second), FinishReason.LIMIT))

request = Request(id=1, prompt=prompt, params=params)
m, s = start()
s = run(m, s, act.Prefill((request,)))
seen("outputs after the prefill", view.of(m, s).outputs, ())
s = run(m, s, act.Round())
seen("outputs", view.of(m, s).outputs, ((1, 0, (first, second), FinishReason.LIMIT),))

e = engine()
e.prefill([request])
e.generate()
found = [(one.tokens, one.reason) for one in e.take_outputs()]
seen("outputs of the engine", found, [((first, second), FinishReason.LIMIT)])
