"""Self-attention with recurrence as defined in the paper, with whole matrices: the slow reference of the tests.

Shapes: B batch, H heads, R heads that carry a REM, Q queries, M memory, K = M + Q keys, D head width.
"""

import math

import torch
from torch import Tensor

from recurrify.attention.config import HeadPlan
from recurrify.attention.encoding import RecurrenceEncoding


def rem_matrix(encoding: RecurrenceEncoding, queries: int, memory: int = 0, causal: bool = True) -> Tensor:
    """P, of shape (R, Q, K): the weight of key j for query i, by their distance M + i − j."""
    position_K = torch.arange(memory + queries, device=encoding.mu.device)
    distance_QK = position_K[memory:, None] - position_K[None, :]
    if not causal:
        distance_QK = distance_QK.abs()
    return torch.stack([_head_matrix(encoding, head, distance_QK) for head in encoding.plan])


def _head_matrix(encoding: RecurrenceEncoding, head: HeadPlan, distance_QK: Tensor) -> Tensor:
    weighed_QK = (distance_QK > 0) & (distance_QK % head.dilation == 0)
    if encoding.config.truncation is not None:
        weighed_QK &= distance_QK <= encoding.config.truncation
    # Masked entries leave before the power: the gradient of a negative power is infinite, and infinity · 0 is NaN.
    steps_QK = torch.where(weighed_QK, distance_QK // head.dilation, 1)
    if head.kind == "regular":
        weights_QK = torch.tanh(encoding.eta[head.parameter]) ** steps_QK
    else:
        wave = torch.cos if head.kind == "cosine" else torch.sin
        decay_QK = torch.sigmoid(encoding.nu[head.parameter]) ** steps_QK
        weights_QK = decay_QK * wave(encoding.theta[head.parameter] * steps_QK)
    return torch.where(weighed_QK, weights_QK, 0.0)


def rsa_matrix_form(query: Tensor, key: Tensor, value: Tensor, encoding: RecurrenceEncoding, causal: bool) -> Tensor:
    """(1 − g) · softmax(QKᵀ/√d) V + g · P V for the heads that carry a REM, plain attention for the others."""
    queries, keys = query.shape[-2], key.shape[-2]
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if causal:
        future_QK = torch.ones(queries, keys, dtype=torch.bool, device=query.device).triu(1 + keys - queries)
        scores = scores.masked_fill(future_QK, -math.inf)
    plain = torch.softmax(scores, dim=-1) @ value
    rem, gate = encoding.rem_heads, encoding.gate()
    recurrent = rem_matrix(encoding, queries, keys - queries, causal) @ value[:, :rem]
    return torch.cat([(1 - gate) * plain[:, :rem] + gate * recurrent, plain[:, rem:]], dim=1)
