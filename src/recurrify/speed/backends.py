"""Which of PyTorch's attention kernels training may use.

On Hopper GPUs cuDNN's kernel is the fastest, and the default since torch 2.11. With a mask, in 16 bits, and a length of
64 modulo 128, it returns NaN gradients for queries whose scores are all very low (PyTorch issue 196678), which ends a
run at random after hours. It is used only for causal attention without a mask.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from recurrify.speed.products import product_dtype

TILE = 128
"""Keys per block of its kernels."""
FLASH_SIZE = 192
"""The largest head size whose gradients flash attention computes on all devices."""
FLASH_DEVICES = (8, 0)
"""The compute capability that flash attention needs."""


def leave_out_cudnn() -> None:
    """Disable cuDNN's attention in this process; PyTorch uses its other kernels."""
    torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def with_cudnn(used: bool = True) -> Iterator[None]:
    """Allow cuDNN's attention inside the context; if not `used`, nothing changes."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(before or used)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def cudnn_is_safe(lengths: Iterable[int]) -> bool:
    """Whether causal attention without mask and dropout is safe for these lengths; half a tile is avoided even here."""
    return all(length % TILE != TILE // 2 for length in lengths)


class _Queries:
    padded = False


_QUERIES = _Queries()


@contextmanager
def with_padded_queries(used: bool = True) -> Iterator[None]:
    """Let `attend_to_earlier` add queries inside the context, if `used`."""
    before, _QUERIES.padded = _QUERIES.padded, used
    try:
        yield
    finally:
        _QUERIES.padded = before


def attend_to_earlier(query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
    """Attention of queries (rows, heads, N, size) to their own N keys causally, and to all keys before those. Keys and
    values may have fewer heads, each of which serves several queries.

    Inside `with_padded_queries` it is plain causal attention with queries of zeros in front, whose results are dropped.
    A kernel works in blocks of 128 positions, so that 300 queries and 560 keys take 14 blocks, and 560 queries 15, but
    every kernel for causal attention will do.
    """
    dtype = product_dtype(query)  # as fused attention does under autocast
    query, key, value = (part.to(dtype) for part in (query, key, value))
    if _QUERIES.padded:
        missing = key.shape[2] - query.shape[2]
        attended = functional.scaled_dot_product_attention(
            functional.pad(query, (0, 0, missing, 0)),
            key,
            value,
            dropout_p=dropout,
            is_causal=True,
            scale=scale,
            enable_gqa=key.shape[1] < query.shape[1],
        )
        return attended[:, :, missing:]
    if _suits_flash(query, value) and flash_is_there(query.device.index):
        # Called directly because torch has no fast kernel for a mask: this one aligns the diagonal with the last query
        # and key, like `torch.nn.attention.bias.causal_lower_right`. It reads shared heads where they are.
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        found: Tensor = flash(query, key, value, dropout, is_causal=True, return_debug_mask=False, scale=scale)[0]
        return found
    if key.shape[1] < query.shape[1]:
        key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for part in (key, value))
    allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
    allowed = allowed.tril(key.shape[2] - query.shape[2])
    return functional.scaled_dot_product_attention(query, key, value, allowed, dropout, scale=scale)


def _suits_flash(query: Tensor, value: Tensor) -> bool:
    size = query.shape[-1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and size == value.shape[-1] and size % 8 == 0 and size <= FLASH_SIZE


@torch.compiler.assume_constant_result  # the compiler cannot trace these calls
def flash_is_there(device: int | None) -> bool:
    """Whether the GPU's flash attention aligns the diagonal with the last query and key; AMD's aligns the first."""
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and torch.backends.cuda.is_flash_attention_available()
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= FLASH_DEVICES
    )
