"""Causal attention with a score for each distance in one fused kernel. Importing this does not import Triton."""

from torch import Tensor

from recurrify.attention import KERNEL_TYPES, KERNEL_WIDTHS, TRITON_INSTALLED

KERNEL_PAIRS = 2**31
"""Limit of pairs of queries and keys in one head, which the kernels count in 32 bits."""


def relative_kernels_run(query_BHQD: Tensor, keys: int) -> bool:
    """Whether the Triton kernels support such queries; they have no dropout of attention weights."""
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
    """`recurrify_papers.kernels.relative_attention`, if `relative_kernels_run`."""
    from recurrify_papers.kernels import relative_attention as kernels  # imports Triton, which is optional

    return kernels.relative_attention(query_BHQD, scores_BHQK, key_BHKD, value_BHKD, span=span)
