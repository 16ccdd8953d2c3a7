"""Losses of whole documents under XLNet, read from left to right with its own memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import XLNetLMHeadModel

from recurrify import UserError
from recurrify.data import TokenizedDocument
from recurrify.evaluate import Evaluation, Tally, check_documents, evaluation_mode
from recurrify_papers.thesis.xlnet import IGNORED, whole_memory, window_losses


def score_xlnet(
    model: XLNetLMHeadModel,
    documents: Sequence[TokenizedDocument],
    *,
    window: int,
    memory: int,
    rows: int = 8,
    bf16: bool = False,
    progress: Callable[[int], None] = lambda tokens: None,
) -> Evaluation:
    """Score every token of every document except its first, exactly once, in windows of `window` tokens.

    Args:
        model: The model.
        documents: What is scored.
        window: Tokens of a window.
        memory: How many tokens before a window its layers remember; 0 is none.
        rows: Documents read at once, which bounds the memory and does not change the result.
        bf16: Compute in bfloat16 if the model is on a CUDA device.
        progress: Called after each forward pass with the number of tokens that it scored; an exception that it raises
            ends the evaluation.
    """
    check_documents(documents, model.config.vocab_size)
    tally = Tally(documents, window, 0)
    half = bf16 and model.device.type == "cuda"
    # Documents of similar lengths: a batch begins all at once, since XLNet cannot hide its memory from a single row.
    longest_first = sorted(range(len(documents)), key=lambda index: -len(documents[index].ids))
    with (
        evaluation_mode(model),
        torch.inference_mode(),
        torch.autocast("cuda", torch.bfloat16) if half else nullcontext(),
        whole_memory(model),
    ):
        for first in range(0, len(longest_first), rows):
            group = longest_first[first : first + rows]
            for start, losses_BN in _read(model, [np.asarray(documents[index].ids) for index in group], window, memory):
                for index, row in zip(group, losses_BN, strict=False):
                    scored = row[: len(documents[index].ids) - 1 - start]
                    if not np.isfinite(scored).all():
                        raise UserError(f"The loss of {documents[index].name!r} is not finite.")
                    tally.add(index, start, scored)
                progress(losses_BN.size)
    return tally.evaluation()


def _read(
    model: XLNetLMHeadModel, texts: Sequence[np.ndarray], window: int, length: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Read texts, the longest first, window by window: where each window starts, and the losses of its rows."""
    memory: list[Tensor] | None = None
    for start in range(0, len(texts[0]) - 1, window):
        # The longest come first, so that the texts that have ended are the last rows.
        rows = [text[start : start + window + 1] for text in texts if len(text) - 1 > start]
        width = len(rows[0]) - 1
        inputs, targets = np.zeros((len(rows), width), np.int64), np.full((len(rows), width), IGNORED, np.int64)
        for place, row in enumerate(rows):
            inputs[place, : len(row) - 1], targets[place, : len(row) - 1] = row[:-1], row[1:]
        memory = None if memory is None else [part[:, : len(rows)] for part in memory]
        ids_BN, targets_BN = (torch.from_numpy(one).to(model.device) for one in (inputs, targets))
        losses_BN, memory = window_losses(model, ids_BN, targets_BN, memory, length)
        yield start, losses_BN.cpu().double().numpy()
