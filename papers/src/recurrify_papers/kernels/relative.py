"""Causal attention with a score for each distance in one fused kernel, where there is one."""

from torch import Tensor

from recurrify.attention.kernels import KERNEL_TYPES, KERNEL_WIDTHS, TRITON_INSTALLED

KERNEL_PAIRS = 2**31
"""Of queries and keys in one head; the kernels count them in 32 bits."""


def relative_kernels_run(query_BHQD: Tensor, keys: int) -> bool:
    """Whether the Triton kernels take such queries; they drop no attention weights."""
    return (
        TRITON_INSTALLED
        and query_BHQD.is_cuda
        and query_BHQD.dtype in KERNEL_TYPES
        and query_BHQD.shape[3] in KERNEL_WIDTHS
        and query_BHQD.shape[2] * keys < KERNEL_PAIRS
        and query_BHQD.numel() > 0
    )


def relative_attention(
    query_BHQD: Tensor, scores_BHQK: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, *, span: int | None = None
) -> Tensor:
    """Where `relative_kernels_run`: as in `recurrify_papers.kernels.relative_attention`."""
    from recurrify_papers.kernels import relative_attention as kernels  # imports Triton, which may not be there

    return kernels.relative_attention(query_BHQD, scores_BHQK, key_BHKD, value_BHKD, span=span)
