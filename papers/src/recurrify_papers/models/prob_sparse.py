"""ProbSparse attention (Zhou et al., 2021): softmax rows for outstanding queries, one common row for the others.

A query is outstanding by the largest minus the mean of its scores over a few sampled keys. The published code gathers a
copy of the sampled keys for every query. Here one matrix product computes all scores and sampled ones are looked up,
without gradients, since a selection has none.

Shapes: B batch, H heads, Q queries, K keys, U chosen queries, N sampled keys of each query, D head width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

EVALUATION_SEED = 0
"""Of the keys sampled in evaluation, so that the same model and data give the same forecast."""


def sparse_count(length: int, factor: int) -> int:
    """How many of `length` are sampled or selected: factor · ⌈ln length⌉, at most all."""
    return min(length, factor * math.ceil(math.log(length))) if length > 1 else 1


def sample_keys(queries: int, keys: int, factor: int, device: torch.device, training: bool) -> Tensor:
    """(Q, N): sampled keys of each query, with replacement, the same for all batch rows and heads."""
    shape = (queries, sparse_count(keys, factor))
    if training:
        return torch.randint(keys, shape, device=device)
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    return torch.randint(keys, shape, generator=generator).to(device)


@torch.no_grad()
def choose_queries(query_BHQD: Tensor, key_BHKD: Tensor, sample_QN: Tensor, count: int) -> Tensor:
    """(B, H, U): the most outstanding queries."""
    scores_BHQK = query_BHQD @ key_BHKD.transpose(-1, -2)
    sampled_BHQN = scores_BHQK.gather(-1, sample_QN.expand(*scores_BHQK.shape[:2], -1, -1))
    # Divided by all keys, as published, and not by the sampled ones.
    outstanding_BHQ = sampled_BHQN.amax(-1) - sampled_BHQN.sum(-1) / key_BHKD.shape[2]
    return outstanding_BHQ.topk(count, sorted=False).indices


def sums_so_far(value_BHKD: Tensor) -> Tensor:
    """Cumulative sums, accumulated in 32 bits and rounded once."""
    if value_BHKD.is_cuda and value_BHKD.dtype in (torch.bfloat16, torch.float16):
        # A matrix product accumulates in 32 bits, and is far faster on a GPU than sums along an inner dimension.
        rows = value_BHKD.shape[2]
        return value_BHKD.new_ones(rows, rows).tril() @ value_BHKD
    return value_BHKD.to(torch.promote_types(value_BHKD.dtype, torch.float32)).cumsum(2)


def prob_sparse_attention(
    query_BHQD: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    sample_QN: Tensor,
    *,
    causal: bool,
    factor: int,
) -> tuple[Tensor, Tensor]:
    """The output (B, H, Q, D), and the selected queries (B, H, U).

    Other rows are the mean of all values or, if causal, the sum of the values up to their own. As published, there is
    no dropout on the weights.
    """
    queries, width = query_BHQD.shape[2:]
    chosen_BHU = choose_queries(query_BHQD, key_BHKD, sample_QN, sparse_count(queries, factor))
    rows_BHUD = chosen_BHU.unsqueeze(-1).expand(-1, -1, -1, width)
    mask = None
    if causal:
        mask = chosen_BHU.unsqueeze(-1) >= torch.arange(key_BHKD.shape[2], device=query_BHQD.device)
    attended_BHUD = functional.scaled_dot_product_attention(
        query_BHQD.gather(2, rows_BHUD), key_BHKD, value_BHKD, attn_mask=mask
    )
    if causal:
        common = sums_so_far(value_BHKD).to(attended_BHUD.dtype)
    else:
        common = value_BHKD.mean(2, keepdim=True).expand(-1, -1, queries, -1).to(attended_BHUD.dtype)
    return common.scatter(2, rows_BHUD, attended_BHUD), chosen_BHU
