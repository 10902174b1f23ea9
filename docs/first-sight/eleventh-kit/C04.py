"""Attention: the soft cap is applied to the scaled score, and bounds it."""
import math
from common import *
from spec import attention

q, key = (3.0, 0.0), (4.0, 5.0)  # the product is 12, and times 0.5 it is 6
score = attention.score(q, key, scale=0.5, soft_cap=2.0)
seen("score", round(score, 12), round(2.0 * math.tanh(6 / 2.0), 12))
# Cells whose scores are 6 and 0: weights e^(2 tanh 3) and 1.
weight = math.exp(2.0 * math.tanh(3.0))
result = attention.naive(q, (key, (0.0, 5.0)), ((1.0, 0.0), (0.0, 1.0)), scale=0.5, soft_cap=2.0)
seen("result", [round(x, 12) for x in result], [round(weight / (weight + 1), 12), round(1 / (weight + 1), 12)])
