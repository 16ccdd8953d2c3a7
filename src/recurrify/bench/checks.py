"""Right first, then fast: losses and gradients of each way of training against the plainest one."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from recurrify.bench.stepping import PASSES_BEFORE_GRAPHS, Stepper
from recurrify.bench.timing import Row

UPDATES, LEARNING_RATE = 2, 1e-3
"""Large enough for a way that goes on with old weights to be found out."""
WINDOWS = 3
"""Enough for a memory to be written, read and written again."""


@dataclass(frozen=True)
class Tolerance:
    loss: float
    """Largest difference."""
    gradient: float
    """Norm of the difference over the norm of the gradient, all weights together."""


EXACT = Tolerance(loss=1e-4, gradient=1e-3)
HALF = Tolerance(loss=2e-2, gradient=3e-2)
"""bfloat16 has 8 bits; compiled windows round in other places."""


def tolerance_on(device: torch.device) -> Tolerance:
    return HALF if device.type == "cuda" else EXACT


@dataclass(frozen=True)
class Seen:
    """What a way of training computes."""

    losses: list[float]
    """Before any update and after each of them."""
    gradients: dict[str, Tensor]
    """Before any update, by the name of the weight in the base or in what was added."""


def observe(stepper: Stepper, ids: Tensor, inside_windows: bool = False) -> Seen:
    """Pass over the same batch until graphs are captured, then update; the weights come out as they were."""
    model = stepper.model
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    rows = stepper.rows_of(ids)
    gradients: dict[str, Tensor] = {}
    loss = torch.zeros(())
    for _ in range(PASSES_BEFORE_GRAPHS):
        model.zero_grad(set_to_none=True)
        # Running statistics move with every pass; here each pass has to be the same.
        model.load_state_dict(before)
        loss = stepper.backward(rows, inside_windows=inside_windows)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name.removeprefix("base.")] = parameter.grad.detach().float().clone()
    losses = [float(loss)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for _ in range(UPDATES):
        optimizer.step()
        model.zero_grad(set_to_none=True)
        losses.append(float(stepper.backward(rows, inside_windows=inside_windows)))
    model.zero_grad(set_to_none=True)
    model.load_state_dict(before)
    return Seen(losses, gradients)


def compare(name: str, expected: Seen, found: Seen, tolerance: Tolerance) -> Row:
    """One line of the table of checks."""
    loss = max(abs(ours - theirs) for ours, theirs in zip(found.losses, expected.losses, strict=True))
    gradient = float("inf")
    if expected.gradients.keys() == found.gradients.keys():
        total = _norm(expected.gradients.values())
        apart = _norm(found.gradients[one] - value for one, value in expected.gradients.items())
        gradient = apart / total if total else float("inf")
    return {
        "name": name,
        "largest_loss_difference": loss,
        "relative_gradient_difference": gradient,
        # Written so that what is not a number does not pass.
        "passed": bool(loss <= tolerance.loss and gradient <= tolerance.gradient),
    }


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(one.square().sum()) for one in tensors))
