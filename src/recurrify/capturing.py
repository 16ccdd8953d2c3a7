"""What training loops of our own share where steps are captured in CUDA graphs: the optimiser and the warm-up."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def capturable_optimizer(
    parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float, device: torch.device
) -> torch.optim.Optimizer:
    """Adam, or AdamW where weights decay; on a CUDA device it reads its learning rate from there."""
    on_cuda = device.type == "cuda"
    rate = torch.tensor(learning_rate, device=device) if on_cuda else learning_rate
    kind = torch.optim.AdamW if weight_decay else torch.optim.Adam
    return kind(parameters, lr=rate, weight_decay=weight_decay, fused=True, capturable=on_cuda)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def on_side_stream(step: Callable[[], Tensor]) -> Tensor:
    """Run a step as it has to be run before the first capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = step()
    torch.cuda.current_stream().wait_stream(side)
    return found
