"""Losses of whole documents under XLNet, read from left to right with its own memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from transformers import XLNetLMHeadModel

from recurrify.errors import UserError
from recurrify.evaluate.evaluation import Evaluation, ScoredDocument, Tally
from recurrify.evaluate.perplexity import Lane, batch_of, check_counts, check_documents, check_finite, evaluation_mode
from recurrify_papers.thesis.xlnet import check_windows, whole_memory, window_losses


def score_xlnet(
    model: XLNetLMHeadModel,
    documents: Sequence[ScoredDocument],
    *,
    window: int,
    memory: int,
    rows: int = 8,
    bf16: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Score every token of every document except its first, exactly once, in windows of `window` tokens.

    - `memory` is how many tokens before a window its layers remember; 0 is none.
    - `rows` documents are read side by side, which bounds the memory and does not change the result.
    - `bf16` computes in bfloat16 where the model is on a CUDA device; elsewhere it does nothing.
    - `progress` is called after each forward pass with the number of tokens it scored.
    """
    check_windows(window, memory)
    check_counts(rows=rows)
    if not isinstance(model, XLNetLMHeadModel):
        raise UserError(f"`model` must be an XLNetLMHeadModel: got {type(model).__name__}; use evaluate_documents.")
    check_documents(documents, model.config.vocab_size)
    tally = Tally(documents, window, 0)
    half = bf16 and model.device.type == "cuda"
    with (
        evaluation_mode(model),
        torch.inference_mode(),
        torch.autocast("cuda", torch.bfloat16) if half else nullcontext(),
        whole_memory(model),
    ):
        for lanes in _groups(documents, rows):
            for scored in _read(model, documents, lanes, tally, window, memory):
                if progress is not None:
                    progress(scored)
    return tally.evaluation()


def _groups(documents: Sequence[ScoredDocument], rows: int) -> Iterator[list[Lane]]:
    """Documents of like lengths: a batch begins all at once, since XLNet cannot hide its memory from one row alone."""
    longest_first = sorted(range(len(documents)), key=lambda index: -len(documents[index].ids))
    for first in range(0, len(longest_first), rows):
        yield [Lane(index, np.asarray(documents[index].ids)) for index in longest_first[first : first + rows]]


def _read(
    model: XLNetLMHeadModel,
    documents: Sequence[ScoredDocument],
    lanes: list[Lane],
    tally: Tally,
    window: int,
    length: int,
) -> Iterator[int]:
    """Read the lanes to their ends; yields after each forward pass how many tokens it scored."""
    memory = None
    while lanes:
        for lane in lanes:
            lane.advance(window, window, 1)
        batch = batch_of(lanes, model.device)
        losses, memory = window_losses(model, batch.inputs, batch.labels, memory, length)
        for lane, row in zip(lanes, losses.cpu().double().numpy(), strict=True):
            scored = row[: lane.stop - lane.start]
            check_finite(scored, documents[lane.document], lane.start, "loss")
            tally.add(lane.document, lane.start, scored)
        yield sum(lane.stop - lane.start for lane in lanes)
        # The longest come first, so that the rows that have ended are the last ones.
        lanes = [lane for lane in lanes if not lane.ended]
        memory = None if memory is None else [part[:, : len(lanes)] for part in memory]
