"""What everything that runs as CUDA graphs shares: warm-up, capture, the device's clock, and an optimiser that can be
captured."""

import gc
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Found = TypeVar("Found")
WARM_UPS = 3
"""Calls before a capture: the first ones compile and choose kernels, which a graph cannot hold."""


def capturable_optimizer(
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    weight_decay: float,
    device: torch.device,
    apart: Sequence[nn.Parameter] = (),
    apart_rate: float | None = None,
) -> torch.optim.Optimizer:
    """Adam, or AdamW where weights decay; on a CUDA device it reads its learning rate from there.

    With an `apart_rate` the parameters `apart`, which are among the others, learn at that rate instead.
    """
    on_cuda = device.type == "cuda"

    def group(members: list[nn.Parameter], times: float) -> dict[str, Any]:
        rate = learning_rate * times
        return {"params": members, "lr": torch.tensor(rate, device=device) if on_cuda else rate, "times": times}

    own = {id(parameter) for parameter in apart} if apart_rate is not None else set()
    groups = [group([parameter for parameter in parameters if id(parameter) not in own], 1.0)]
    if own and apart_rate is not None:
        groups.append(group(list(apart), apart_rate / learning_rate))
    kind = torch.optim.AdamW if weight_decay else torch.optim.Adam
    return kind(groups, weight_decay=weight_decay, fused=True, capturable=on_cuda)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of all, and in the same proportion as before of those with a rate of their own."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * group["times"])
        else:
            group["lr"] = rate * group["times"]


def on_side_stream(step: Callable[[], Found]) -> Found:
    """Run a step as it has to be run before the first capture."""
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = step()
    torch.cuda.current_stream().wait_stream(side)
    return found


def capture(step: Callable[[], None], pool: Any = None) -> Callable[[], None]:
    """Record all that a step launches, without running it; what comes back launches it all at once.

    The step finds its inputs and leaves its results in tensors that stay where they are. Graphs with one `pool` share
    memory: what one leaves there lasts until another is launched.
    """
    gc.collect()  # garbage that goes while capturing might wait for the device, which would end the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=_side_stream(torch.cuda.current_device())):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def as_graph(step: Callable[[], Any], calls: int = 1) -> Callable[[], None]:
    """`calls` of `step` captured once, to be replayed without Python."""
    for _ in range(WARM_UPS):
        on_side_stream(step)

    def all_calls() -> None:
        for _ in range(calls):
            step()

    return capture(all_calls)


def device_seconds(work: Callable[[], Any], calls: int = 1) -> float:
    """Of one of several calls in a row, by the device's own clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / calls


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One for warm-up and capture: every stream keeps memory of its own, and libraries their workspace."""
    return torch.cuda.Stream(device)
