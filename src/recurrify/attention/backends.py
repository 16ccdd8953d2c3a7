"""Which of PyTorch's attention kernels training may use.

On Hopper GPUs cuDNN's is the fastest, and since torch 2.11 the default. With a mask, in 16 bits, where a length leaves
64 modulo 128, gradients of queries whose scores are all very low come out as no numbers (PyTorch issue 196678): a run
then ends after hours, at random. Where attention is causal and has no mask it may be used.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

TILE = 128
"""Keys that its kernels take at once."""


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


def chosen_kernels() -> str:
    """By name, for what torch keeps of its compilations: it does not ask which kernels were allowed then."""
    return "cudnn" if torch.backends.cuda.cudnn_sdp_enabled() else ""
