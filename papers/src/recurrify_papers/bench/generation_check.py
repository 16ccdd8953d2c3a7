"""Right first: every step of generation against a forward pass over the same text."""

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from recurrify_papers.bench.checks import stirred, told_apart, true_float32
from recurrify_papers.bench.models import random_tokens
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.timing import Row

SAME = 1e-4
"""Norm of the difference over the norm of a step's logits: in float32, steps are a hundred times nearer, and what
forgets its memory is a hundred times off."""
WINDOWS = 2
"""Of tokens that are written, after half a window that is read: two borders, with and without a memory before them."""


class Along(LogitsProcessor):
    """Lets generation choose the tokens of a given text, whatever it thinks of them.

    Its own choice would show nothing: with random weights a model repeats one token, whatever its memory holds.
    """

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen = torch.full_like(scores, float("-inf"))
        return chosen.scatter(1, self.text[:, input_ids.shape[1], None], 0.0)


def check_of(name: str) -> str:
    return f"{name}: each step's logits against a forward pass"


def check_steps(name: str, model: Any, size: Size, **more: Any) -> Row:
    """`more` is what `generate` is given besides when it is timed. In float32: rounding would hide what is wrong."""
    read = max(1, size.window // 2)
    new = WINDOWS * size.window
    whole = random_tokens(size, 1, (WINDOWS + 1) * size.window, model.device)
    text = told_apart(whole, size.window)[:, : read + new]
    with stirred(model.eval()), true_float32(), torch.inference_mode():
        written = model.generate(
            text[:, :read],
            attention_mask=torch.ones_like(text[:, :read]),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([Along(text)]),
            output_logits=True,
            return_dict_in_generate=True,
            **more,
        )
        found = torch.stack(written.logits, dim=1).float()
        expected = model(text[:, :-1], use_cache=False).logits[:, read - 1 :].float()
    apart = float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
    along = torch.equal(written.sequences, text)
    # Written so that what is not a number does not pass.
    return {"name": check_of(name), "largest_difference": apart, "passed": bool(along and apart <= SAME)}
