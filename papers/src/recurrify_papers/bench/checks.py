"""Correct first: losses and gradients of every mode against the eager one before anything is timed."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList

from recurrify_papers.bench.models import Stepper, random_tokens
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.timing import Row

WINDOWS = 3
"""Enough for a memory to be written, read and written again."""
DISTINCT = 4
"""Distinct tokens in a checked window: with more, the pooled windows would be almost equal."""
MEMORY = "mechanism."
"""Prefix of the memory's parameters."""
UPDATES = 2


class Tolerance(NamedTuple):
    loss: float
    """Largest difference."""
    gradient: float
    """Norm of the difference over the norm of the base's gradients."""
    memory_gradient: float
    """The same for the memory's parameters."""


TOLERANCES = {"cuda": Tolerance(2e-2, 1e-2, 2e-2), "cpu": Tolerance(1e-4, 1e-3, 1e-3)}
"""bf16 on a GPU, float32 on a CPU. Compiled windows round in other places, which moves gradients by half a percent;
a memory that is cut off, or of another row, moves them by more than half."""
SAME_LOGITS = 1e-4
"""Relative difference of generated steps in float32."""


class Observed(NamedTuple):
    losses: list[float]
    """Before any update and after each of them."""
    gradients: dict[str, Tensor]
    """Before any update, by parameter name without `base.`."""


def distinct_windows(ids: Tensor, window: int) -> Tensor:
    """The same tokens reduced to a few per window, different in every window and row."""
    windows = ids.unflatten(1, (-1, window))
    return windows[..., :DISTINCT].gather(-1, windows % DISTINCT).flatten(1)


@contextmanager
def random_memory(model: nn.Module) -> Iterator[None]:
    """Give the memory large random weights for a while: its initial ones would hide errors."""
    before = _copy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.startswith(MEMORY) and (value.ndim > 1 or name.endswith("bias")):
                scale = 4.0 * value.shape[-1] ** -0.5 if value.ndim > 1 else 0.02
                value.copy_(scale * torch.randn(value.shape, generator=generator))
    try:
        yield
    finally:
        model.load_state_dict(before)


def observe(stepper: Stepper, ids: Tensor, inside_windows: bool = False) -> Observed:
    """Losses and gradients; the weights are restored."""
    model, rows = stepper.model, stepper.rows_of(ids)
    with random_memory(model):
        before = _copy(model)
        for _ in range(stepper.passes):
            model.zero_grad(set_to_none=True)
            model.load_state_dict(before)  # running statistics move with every pass
            loss = stepper.backward(rows, inside_windows=inside_windows)
        gradients = {
            name.removeprefix("base."): parameter.grad.detach().float().clone()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        losses = [float(loss)]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(UPDATES):
            optimizer.step()
            model.zero_grad(set_to_none=True)
            losses.append(float(stepper.backward(rows, inside_windows=inside_windows)))
        model.zero_grad(set_to_none=True)
    return Observed(losses, gradients)


def compare(name: str, expected: Observed, found: Observed, device: torch.device) -> Row:
    """One row of the table of checks; NaN never passes."""
    tolerance = TOLERANCES[device.type]
    loss = max(abs(one - other) for one, other in zip(found.losses, expected.losses, strict=True))
    memory = [one for one in expected.gradients if one.startswith(MEMORY)]
    base = [one for one in expected.gradients if not one.startswith(MEMORY)]
    apart = _apart(expected, found, base)
    memory_apart = _apart(expected, found, memory) if memory else 0.0
    passed = loss <= tolerance.loss and apart <= tolerance.gradient and memory_apart <= tolerance.memory_gradient
    return {
        "name": name,
        "loss_difference": loss,
        "gradient_difference": apart,
        "memory_gradient_difference": memory_apart if memory else None,
        "passed": bool(passed and expected.gradients.keys() == found.gradients.keys()),
    }


def _apart(expected: Observed, found: Observed, names: Iterable[str]) -> float:
    pairs = [(expected.gradients[name], found.gradients.get(name)) for name in names]
    total = math.sqrt(sum(float(one.square().sum()) for one, _ in pairs))
    if not total or any(other is None for _, other in pairs):
        return math.inf
    return math.sqrt(sum(float((other - one).square().sum()) for one, other in pairs if other is not None)) / total


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


class _Forced(LogitsProcessor):
    """Makes generation write a given text: a random model would repeat one token whatever it remembers."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen = torch.full_like(scores, float("-inf"))
        return chosen.scatter(1, self.text[:, input_ids.shape[1], None], 0.0)


def check_generation(name: str, model: Any, size: Size, **options: Any) -> Row:
    """Logits of every generated step against one forward pass over the same text, in float32."""
    read, new = max(1, size.window // 2), 2 * size.window
    whole = random_tokens(size, 1, 3 * size.window, model.device)
    text = distinct_windows(whole, size.window)[:, : read + new]
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with random_memory(model.eval()), torch.inference_mode():
            written = model.generate(
                text[:, :read],
                attention_mask=torch.ones_like(text[:, :read]),
                max_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
                logits_processor=LogitsProcessorList([_Forced(text)]),
                output_logits=True,
                return_dict_in_generate=True,
                **options,
            )
            found = torch.stack(written.logits, dim=1).float()
            expected = model(text[:, :-1], use_cache=False).logits[:, read - 1 :].float()
    finally:
        torch.set_float32_matmul_precision(precision)
    apart = float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
    passed = torch.equal(written.sequences, text) and apart <= SAME_LOGITS
    return {"name": f"{name}: each step against a forward pass", "difference": apart, "passed": bool(passed)}
