"""Which of PyTorch's attention kernels training may use."""

import torch


def leave_out_cudnn() -> None:
    """Keep cuDNN's attention out of this process; PyTorch's other kernels take over.

    Since torch 2.11 it is what Hopper GPUs use by default, and in 16 bits, with a mask, gradients of queries whose
    scores are all very low come out as no numbers (PyTorch issue 196678): a run then ends after hours, at random.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
