"""Self-attention with recurrence: any softmax attention, mixed with the scan of its values.

Shapes: B batch, H heads, Q queries, M memory, K = M + Q keys, D head width.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.fused import fused_mix, kernels_run
from recurrify.attention.scan import ScanState, carry_state, check_scan, chunked_scan
from recurrify.errors import UserError


class RSAResult(NamedTuple):
    output: Tensor
    """(B, H, Q, D)."""
    state: ScanState | None
    """Pass it to the next call to continue after the last key; None when bidirectional."""


def mix_recurrence(
    attended: Tensor,
    value: Tensor,
    encoding: RecurrenceEncoding,
    *,
    causal: bool,
    state: ScanState | None = None,
) -> RSAResult:
    """(1 − g) · attended + g · P·V for the heads that carry a REM; the other heads pass unchanged.

    For attention of any kind: `attended` (B, H, Q, D) is its output, `value` (B, H, K, D) its values. Keys in front of
    the first query are memory. A `state` already holds the memory, so then only the queries' own values are read.
    """
    queries, keys = attended.shape[2], value.shape[2]
    if attended.shape[1] != encoding.config.heads or value.shape[1] != encoding.config.heads:
        raise UserError(
            f"attention and encoding must have the same heads: got {attended.shape[1]} in the queries, "
            f"{value.shape[1]} in the values, {encoding.config.heads} in the encoding."
        )
    if keys < queries:
        raise UserError(f"there must be a key for every query: got {keys} keys, {queries} queries.")
    if attended.shape[0] != value.shape[0] or attended.shape[3] != value.shape[3]:
        raise UserError(
            f"attention and values must have the same batch and width: got {tuple(attended.shape)} and "
            f"{tuple(value.shape)}."
        )
    if state is not None:
        value = value[:, :, keys - queries :]
    memory, truncation = value.shape[2] - queries, encoding.config.truncation
    rem_shape = (value.shape[0], encoding.rem_heads, *value.shape[2:])
    check_scan(rem_shape, encoding.dilations, truncation, causal, memory, state)
    fused = kernels_run(value, attended, encoding.mu)
    if fused and truncation is None:
        carry = None if state is None else state.carry
        output, next_carry = fused_mix(attended, value, encoding, causal=causal, memory=memory, carry=carry)
        return RSAResult(output, carry_state(next_carry) if causal else None)
    return chunked_mix(attended, value, encoding, causal=causal, memory=memory, state=state, fused=fused)


def chunked_mix(
    attended: Tensor,
    value: Tensor,
    encoding: RecurrenceEncoding,
    *,
    causal: bool,
    memory: int,
    state: ScanState | None = None,
    fused: bool = False,
) -> RSAResult:
    """The same in plain PyTorch, on any device and in any precision; `fused` as in `chunked_scan`."""
    rem = encoding.rem_heads
    recurrent, next_state = chunked_scan(
        value[:, :rem], encoding.kernel(), causal=causal, memory=memory, state=state, fused=fused
    )
    gate = encoding.gate().to(attended.dtype)
    mixed = (1 - gate) * attended[:, :rem] + gate * recurrent
    return RSAResult(torch.cat([mixed, attended[:, rem:]], dim=1), next_state)


def rsa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    encoding: RecurrenceEncoding,
    *,
    causal: bool = True,
    state: ScanState | None = None,
    dropout: float = 0.0,
) -> RSAResult:
    """Fused softmax attention and the recurrence together; `dropout` acts on the softmax weights."""
    queries, keys = query.shape[2], key.shape[2]
    mask = None
    if causal and 1 < queries < keys:
        # `is_causal` aligns the first query with the first key; with memory it is the last ones that meet.
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    attended = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal and queries == keys
    )
    return mix_recurrence(attended, value, encoding, causal=causal, state=state)
