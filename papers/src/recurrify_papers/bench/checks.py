"""Right first, then fast: losses and gradients of each way of training against the plainest one."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.stepping import PASSES_BEFORE_GRAPHS, Stepper
from recurrify_papers.bench.timing import NO_TIME, WRONG, Row, tried

UPDATES, LEARNING_RATE = 2, 1e-3
"""Large enough for a way that goes on with old weights to be found out."""
WINDOWS = 3
"""Enough for a memory to be written, read and written again."""
OWN_TOKENS = 4
"""Different tokens in a window that is checked."""
STIRRED, STIRRED_BIAS = 4.0, 0.02
"""Spread of a stirred memory's weights, of matrices times the root of their inputs."""
MEMORY = "mechanism."
"""How the names of a memory's weights begin."""


@dataclass(frozen=True)
class Tolerance:
    loss: float
    """Largest difference."""
    gradient: float
    """Norm of the difference over the norm of the gradient, all weights of the base together."""
    memory_gradient: float
    """Likewise of the memory's own weights."""


EXACT = Tolerance(loss=1e-4, gradient=1e-3, memory_gradient=1e-3)
HALF = Tolerance(loss=2e-2, gradient=1e-2, memory_gradient=2e-2)
"""bfloat16 has 8 bits; compiled windows round in other places. That moves the base's gradients by half a percent and a
memory's by one. Those of a memory that is cut off or belongs to another row move by more than half; but what a compiler
gets wrong in a few norms has been seen to move the base's by no more than two percent."""


def tolerance_on(device: torch.device) -> Tolerance:
    return HALF if device.type == "cuda" else EXACT


@dataclass(frozen=True)
class Seen:
    """What a way of training computes."""

    losses: list[float]
    """Before any update and after each of them."""
    gradients: dict[str, Tensor]
    """Before any update, by the name of the weight in the base or in what was added."""


def told_apart(ids: Tensor, window: int) -> Tensor:
    """Only a few tokens for each window of each row, or the means over all windows would be much the same."""
    windows = ids.unflatten(1, (-1, window))
    return windows[..., :OWN_TOKENS].gather(-1, windows % OWN_TOKENS).flatten(1)


def check_each(
    bench: Bench, ours: Stepper, names: Mapping[str, str], check: Callable[[str], Row], earlier: dict[str, Any]
) -> tuple[list[Row], dict[str, str | None]]:
    """`names` are of checks, by what `check` is given; those that an `earlier` run has made stand.

    Also why one is not to be timed, if there is a reason.
    """
    known = {one["name"]: one for one in earlier.get("checks") or []}
    checks: list[Row] = []
    troubles: dict[str, str | None] = {}

    def add(key: str) -> None:
        checks.append(check(key))

    for key, name in names.items():
        if name in known:
            checks.append(known[name])
        elif bench.out_of_time():
            troubles[key] = NO_TIME
            continue
        else:
            troubles[key] = tried(partial(add, key), bench.device)
            ours.rest()
        if troubles.get(key) is None and not checks[-1]["passed"]:
            bench.say(f"{name}: wrong results, and therefore not timed")
            troubles[key] = WRONG
    return checks, troubles


@contextmanager
def stirred(model: nn.Module) -> Iterator[None]:
    """Meanwhile the memory depends on its window and matters; a neutral start hides what is wrong with it."""
    before = _copy_of(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.startswith(MEMORY) and (value.ndim > 1 or name.endswith("bias")):
                spread = STIRRED * value.shape[-1] ** -0.5 if value.ndim > 1 else STIRRED_BIAS
                value.copy_(spread * torch.randn(value.shape, generator=generator))
    try:
        yield
    finally:
        model.load_state_dict(before)


@contextmanager
def true_float32() -> Iterator[None]:
    """Meanwhile products of float32 matrices are not rounded, which would choose other tokens."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def observe(stepper: Stepper, ids: Tensor, inside_windows: bool = False) -> Seen:
    """What a stirred model computes; the weights come out as they were."""
    with stirred(stepper.model):
        return _observe(stepper, ids, inside_windows)


def _observe(stepper: Stepper, ids: Tensor, inside_windows: bool) -> Seen:
    """Pass over the same batch until graphs are captured, then update."""
    model = stepper.model
    before = _copy_of(model)
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
    return Seen(losses, gradients)


def _copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def compare(name: str, expected: Seen, found: Seen, tolerance: Tolerance) -> Row:
    """One line of the table of checks."""
    loss = max(abs(ours - theirs) for ours, theirs in zip(found.losses, expected.losses, strict=True))
    base = {one for one in expected.gradients if not one.startswith(MEMORY)}
    memory = expected.gradients.keys() - base
    check: Row = {
        "name": name,
        "largest_loss_difference": loss,
        "relative_gradient_difference": _apart(expected, found, base),
    }
    # Written so that what is not a number does not pass.
    passed = loss <= tolerance.loss and check["relative_gradient_difference"] <= tolerance.gradient
    if memory:
        # By itself: beside the base's, it is too small to be missed.
        check["relative_memory_gradient_difference"] = _apart(expected, found, memory)
        passed = passed and check["relative_memory_gradient_difference"] <= tolerance.memory_gradient
    return {**check, "passed": bool(passed and expected.gradients.keys() == found.gradients.keys())}


def _apart(expected: Seen, found: Seen, names: Iterable[str]) -> float:
    """Norm of the difference over the norm of what is expected."""
    wanted = {name: expected.gradients[name] for name in names}
    total = _norm(wanted.values())
    if not total or not wanted.keys() <= found.gradients.keys():
        return float("inf")
    return _norm(found.gradients[name] - value for name, value in wanted.items()) / total


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(one.square().sum()) for one in tensors))
