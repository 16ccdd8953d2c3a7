"""Which of PyTorch's attention kernels training may use.

On Hopper GPUs cuDNN's is the fastest, and since torch 2.11 the default. With a mask, in 16 bits, where a length leaves
64 modulo 128, gradients of queries whose scores are all very low come out as no numbers (PyTorch issue 196678): a run
then ends after hours, at random. Where attention is causal and has no mask it may be used.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from recurrify.speed.products import product_dtype

TILE = 128
"""Keys that its kernels take at once."""
FLASH_SIZE = 192
"""The largest heads of which flash attention makes gradients on every device that has it."""
FLASH_DEVICES = (8, 0)
"""The compute capability that it needs."""


def leave_out_cudnn() -> None:
    """Keep cuDNN's attention out of this process; PyTorch's other kernels take over."""
    torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def with_cudnn(used: bool = True) -> Iterator[None]:
    """Meanwhile cuDNN's attention may be chosen; not `used`, all stays as it is."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(before or used)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def cudnn_is_safe(lengths: Iterable[int]) -> bool:
    """For causal attention without mask and dropout, over so many positions: half a tile is left alone even so."""
    return all(length % TILE != TILE // 2 for length in lengths)


def attend_to_earlier(query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
    """Attention of queries (rows, heads, N, size) to more keys than there are queries: to all that stand before their
    own, and causally to those."""
    if key.shape[1] < query.shape[1]:  # heads that share theirs
        key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for part in (key, value))
    dtype = product_dtype(query)  # as fused attention does under autocast
    query, key, value = (part.to(dtype) for part in (query, key, value))
    if _suits_flash(query, value) and flash_is_there(query.device.index):
        # Without a mask, for which torch has no quick kernel: this one's diagonal ends where queries and keys do, as
        # `torch.nn.attention.bias.causal_lower_right` relies on.
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        attended: Tensor = flash(query, key, value, dropout, is_causal=True, return_debug_mask=False, scale=scale)[0]
        return attended
    allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
    allowed = allowed.tril(key.shape[2] - query.shape[2])
    return functional.scaled_dot_product_attention(query, key, value, allowed, dropout, scale=scale)


def _suits_flash(query: Tensor, value: Tensor) -> bool:
    size = query.shape[-1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and size == value.shape[-1] and size % 8 == 0 and size <= FLASH_SIZE


@torch.compiler.assume_constant_result  # the compiler cannot look into what torch answers here
def flash_is_there(device: int | None) -> bool:
    """Whether that GPU has flash attention whose diagonal ends where queries and keys do: AMD's begins with them."""
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and torch.backends.cuda.is_flash_attention_available()
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= FLASH_DEVICES
    )
