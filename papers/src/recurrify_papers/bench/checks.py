"""Correct first: losses and gradients of every mode against the eager one before anything is timed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList

from recurrify.speed import Step, compare_steps, take_step
from recurrify_papers.bench.models import Stepper, half, random_tokens
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.timing import Row

WINDOWS = 3
"""Enough for a memory to be written, read and written again."""
DISTINCT = 4
"""Distinct tokens in a checked window: with more, the pooled windows would be almost equal."""
MEMORY = "mechanism."
"""Prefix of the memory's parameters."""
SAME_LOGITS = 1e-4
"""Relative difference of generated steps in float32."""


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


def observe(stepper: Stepper, ids: Tensor, inside_windows: bool = False) -> list[Step]:
    """Losses and gradients before an update and after it; the weights are restored."""
    model, rows = stepper.model, stepper.rows_of(ids)
    steps = []
    with random_memory(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(2):
            for _ in range(stepper.passes):
                with half(stepper.device):
                    found = take_step(model, lambda: stepper.loss(rows, inside_windows))
            gradients = {name.removeprefix("base."): gradient for name, gradient in found.gradients.items()}
            steps.append(found._replace(gradients=gradients))
            for name, parameter in model.named_parameters():
                parameter.grad = found.gradients[name]
            optimizer.step()
            model.zero_grad(set_to_none=True)
    return steps


def compare(name: str, expected: list[Step], found: list[Step], device: torch.device) -> Row:
    """One row of the table of checks, with the tolerances of `recurrify.speed.verify`."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    pairs = zip(found, expected, strict=True)
    wrong = [compare_steps(ours, theirs, dtype, lambda name: name.startswith(MEMORY)) for ours, theirs in pairs]
    difference = next((one for one in wrong if one is not None), None)
    return {"name": name, "difference": difference, "passed": difference is None}


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
