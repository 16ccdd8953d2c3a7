"""What training from scratch and measurements need to run as CUDA graphs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from recurrify.attention import recurrence_parameters
from recurrify.speed import capture, on_side_stream

STEPS_BEFORE_CAPTURE = 3
"""Calls before a capture: the first ones compile and select kernels, and the allocator settles."""


def capturable_optimizer(
    model: nn.Module, learning_rate: float, weight_decay: float, device: torch.device, recurrence_rate: float | None
) -> torch.optim.Optimizer:
    """Adam, or AdamW with weight decay; on a CUDA device the learning rate is a tensor there.

    With `recurrence_rate`, the gates, decays and angles of RSA use that learning rate.
    """
    on_cuda = device.type == "cuda"

    def group(members: list[nn.Parameter], times: float) -> dict[str, Any]:
        rate = learning_rate * times
        return {"params": members, "lr": torch.tensor(rate, device=device) if on_cuda else rate, "times": times}

    apart = [] if recurrence_rate is None else list(recurrence_parameters(model))
    own = {id(parameter) for parameter in apart}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [group([parameter for parameter in trained if id(parameter) not in own], 1.0)]
    if apart and recurrence_rate is not None:
        groups.append(group(apart, recurrence_rate / learning_rate))
    kind = torch.optim.AdamW if weight_decay else torch.optim.Adam
    return kind(groups, weight_decay=weight_decay, fused=True, capturable=on_cuda)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups; groups with a rate of their own keep their ratio to it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * group["times"])
        else:
            group["lr"] = rate * group["times"]


class CapturedStep:
    """A training step on tensors that keep their addresses: a few ordinary calls, then replays of a captured one."""

    def __init__(self, step: Callable[[], Any], optimizer: torch.optim.Optimizer) -> None:
        self.step, self.optimizer = step, optimizer
        self.uncaptured_calls = 0
        self.replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self.uncaptured_calls < STEPS_BEFORE_CAPTURE:
            self.uncaptured_calls += 1
            on_side_stream(self.step)
            return
        if self.replay is None:
            # Gradients made during the capture must be in the graph's own memory, where replays overwrite them.
            self.optimizer.zero_grad(set_to_none=True)
            self.replay = capture(self.step)
        self.replay()


def as_graph(step: Callable[[], Any], calls: int = 1) -> Callable[[], None]:
    """Capture `calls` calls of `step` as one graph."""
    for _ in range(STEPS_BEFORE_CAPTURE):
        on_side_stream(step)

    def all_calls() -> None:
        for _ in range(calls):
            step()

    return capture(all_calls)


def device_seconds(work: Callable[[], Any], calls: int = 1) -> float:
    """Seconds per call, measured with device events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / calls
