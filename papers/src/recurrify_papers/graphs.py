"""What training from scratch and measurements need to run as CUDA graphs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from recurrify.attention import recurrence_parameters
from recurrify.speed import Step, capture, compare_steps, on_side_stream, warn_of

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
    """A training step on tensors that keep their addresses: a few ordinary calls, then replays of a captured one.

    The first replay is compared with an ordinary call with the same weights and random numbers. If they differ, the
    steps stay ordinary calls.

    Args:
        model: What is trained.
        step: Updates its weights, and returns the loss.
        optimizer: The one that `step` uses.
        carried: Other tensors that `step` changes.
        dtype: In which matrix products are computed.
    """

    def __init__(
        self,
        model: nn.Module,
        step: Callable[[], Tensor],
        optimizer: torch.optim.Optimizer,
        carried: Sequence[Tensor] = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model, self.step, self.optimizer, self.carried, self.dtype = model, step, optimizer, carried, dtype
        self.uncaptured_calls = 0
        self.run: Callable[[], object] = partial(on_side_stream, self._step)
        self.loss: Tensor

    def __call__(self) -> Tensor:
        """The loss, which the next call may overwrite."""
        if self.uncaptured_calls == STEPS_BEFORE_CAPTURE:
            self._capture()
        else:
            self.run()
        self.uncaptured_calls += 1
        return self.loss

    def _step(self) -> None:
        self.loss = self.step()

    def _capture(self) -> None:
        ordinary, before = self.run, self._changed()
        expected = self._observe(ordinary)
        # Gradients made during the capture must be in the graph's own memory, where replays overwrite them.
        self.optimizer.zero_grad(set_to_none=True)
        self.run = capture(self._step)
        self._restore(before)
        difference = compare_steps(self._observe(self.run), expected, self.dtype)
        if difference is not None:
            warn_of(f"differs from the ordinary one ({difference})", "captured")
            self._restore(before)
            self.run = ordinary
            self.run()

    def _observe(self, run: Callable[[], object]) -> Step:
        run()
        found = {name: None if one.grad is None else _copied(one.grad) for name, one in self.model.named_parameters()}
        return Step(_copied(self.loss), found)

    def _changed(self) -> tuple[Tensor, list[Tensor]]:
        return torch.cuda.get_rng_state(), [_copied(one) for one in self._tensors()]

    def _restore(self, before: tuple[Tensor, list[Tensor]]) -> None:
        torch.cuda.set_rng_state(before[0])
        with torch.no_grad():
            for one, value in zip(self._tensors(), before[1], strict=True):
                one.copy_(value)

    def _tensors(self) -> list[Tensor]:
        """All that a step changes."""
        kept = [one for state in self.optimizer.state.values() for one in state.values() if isinstance(one, Tensor)]
        return [*self.model.parameters(), *self.model.buffers(), *kept, *self.carried]


def _copied(tensor: Tensor) -> Tensor:
    """On the CPU: GPU memory is measured."""
    return tensor.detach().to("cpu", copy=True)


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
