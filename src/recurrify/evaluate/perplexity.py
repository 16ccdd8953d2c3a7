"""Losses of whole documents, read side by side, each from its first token to its last with carried state."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurrify.errors import UserError
from recurrify.evaluate.evaluation import Evaluation, ScoredDocument, Tally
from recurrify.recurrence import (
    NoRecurrence,
    RecurrentForCausalLM,
    RecurrentPreTrainedModel,
    add_recurrence,
)
from recurrify.state import State


def evaluate_documents(
    model: PreTrainedModel,
    documents: Sequence[ScoredDocument],
    *,
    window: int | None = None,
    overlap: int | None = None,
    rows: int = 8,
    windows_per_call: int = 8,
    bf16: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Score every token of every document except its first, exactly once.

    - `model` is a recurrent causal model, or a plain one, which then runs over windows without memory.
    - `window` and `overlap` are the model's own unless given; every setting scores the same tokens.
    - `rows` documents are read side by side, at most `windows_per_call` windows of each in one forward pass:
      the two bound the memory and do not change the result.
    - `bf16` computes in bfloat16 where the model is on a CUDA device; elsewhere it does nothing.
    - `progress` is called after each forward pass with the number of tokens it scored.
    """
    for name, value in (("rows", rows), ("windows_per_call", windows_per_call)):
        if value < 1:
            raise UserError(f"`{name}` must be at least 1: got {name}={value}.")
    with evaluation_mode(model):
        recurrent = _as_recurrent(model, window, overlap)
        _check_documents(documents, recurrent.base.config.vocab_size)
        half = bf16 and recurrent.device.type == "cuda"
        with (
            recurrence_settings(recurrent, window, overlap),
            torch.inference_mode(),
            torch.autocast("cuda", torch.bfloat16) if half else nullcontext(),
        ):
            tally = Tally(documents, recurrent.recurrence.window, recurrent.recurrence.overlap)
            _score(recurrent, documents, tally, rows, windows_per_call, progress)
    return tally.evaluation()


@contextmanager
def evaluation_mode(model: PreTrainedModel) -> Iterator[None]:
    """Dropout off, and each module back in its own mode afterwards: parts may have been frozen one by one."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def recurrence_settings(model: RecurrentPreTrainedModel, window: int | None, overlap: int | None) -> Iterator[None]:
    """Another window and overlap for a while; None leaves the model's own."""
    before = model.recurrence
    changes = {
        "window": before.window if window is None else window,
        "overlap": before.overlap if overlap is None else overlap,
    }
    model.set_recurrence(**changes)
    try:
        yield
    finally:
        model.set_recurrence(window=before.window, overlap=before.overlap)


def _as_recurrent(model: PreTrainedModel, window: int | None, overlap: int | None) -> RecurrentForCausalLM:
    recurrent: Any = model
    if not isinstance(model, RecurrentPreTrainedModel):
        settings = NoRecurrence(
            window=NoRecurrence.window if window is None else window,
            overlap=NoRecurrence.overlap if overlap is None else overlap,
        )
        recurrent = add_recurrence(model, settings)
    if not isinstance(recurrent, RecurrentForCausalLM):
        raise UserError(
            f"Perplexity needs a model that predicts the next token: got {type(model).__name__}; "
            "load it with AutoModelForCausalLM."
        )
    return recurrent


def _check_documents(documents: Sequence[ScoredDocument], vocabulary: int) -> None:
    if len(documents) == 0:
        raise UserError("There is nothing to evaluate: give at least one document.")
    for document in documents:
        if len(document.ids) < 2:
            raise UserError(
                f"Document {document.name!r} has {len(document.ids)} token(s), but scoring needs at least 2: "
                "leave it out."
            )
        largest = int(np.max(document.ids))
        # On a GPU such an id would end the process in the middle of a kernel.
        if largest >= vocabulary or int(np.min(document.ids)) < 0:
            raise UserError(
                f"Document {document.name!r} has token ids up to {largest}, but the model knows 0 to "
                f"{vocabulary - 1}: tokenize it with the model's own tokenizer."
            )


@dataclass
class Lane:
    """A row of the batch and the document it is reading."""

    document: int
    ids: np.ndarray
    start: int = 0
    """The first input of the coming call."""
    stop: int = 0
    """The end of its inputs."""

    @property
    def ended(self) -> bool:
        # The last token is only predicted: nothing follows that it could predict.
        return self.stop == len(self.ids) - 1

    def advance(self, window: int, stride: int, windows: int) -> None:
        """Choose the coming call's inputs: up to a window's end, so that no window is run a second time."""
        fresh = window + (windows - 1) * stride if self.stop == 0 else windows * stride
        self.start, self.stop = self.stop, min(self.stop + fresh, len(self.ids) - 1)


def _score(
    model: RecurrentForCausalLM,
    documents: Sequence[ScoredDocument],
    tally: Tally,
    rows: int,
    windows_per_call: int,
    progress: Callable[[int], None] | None,
) -> None:
    # The longest first: a long document begun last would be read alone, in an otherwise empty batch.
    longest_first = sorted(range(len(documents)), key=lambda index: -len(documents[index].ids))
    waiting = deque(Lane(index, np.asarray(documents[index].ids)) for index in longest_first)
    lanes = [waiting.popleft() for _ in range(min(rows, len(waiting)))]
    state = State.fresh(len(lanes), model.device)
    window, stride = model.recurrence.window, model.recurrence.stride
    while lanes:
        for lane in lanes:
            lane.advance(window, stride, windows_per_call)
        losses, state = _run(model, lanes, state)
        for lane, row in zip(lanes, losses, strict=True):
            scored = row[: lane.stop - lane.start]
            if not np.isfinite(scored).all():
                token = lane.start + 1 + int(np.argmin(np.isfinite(scored)))
                raise UserError(
                    f"The loss of document {documents[lane.document].name!r} is not a finite number from "
                    f"token {token} on: check the model's weights, or run it in float32."
                )
            tally.add(lane.document, lane.start, scored)
        if progress is not None:
            progress(sum(lane.stop - lane.start for lane in lanes))
        lanes, state = _next_lanes(lanes, waiting, state)


def _run(model: RecurrentForCausalLM, lanes: Sequence[Lane], state: State) -> tuple[np.ndarray, State]:
    """One forward pass; the losses (rows, longest) in float64, each row from its first column on."""
    longest = max(lane.stop - lane.start for lane in lanes)
    inputs = np.zeros((len(lanes), longest), dtype=np.int64)
    labels, mask = np.full_like(inputs, -100), np.zeros_like(inputs)
    for row, lane in enumerate(lanes):
        count = lane.stop - lane.start
        inputs[row, :count] = lane.ids[lane.start : lane.stop]
        labels[row, :count] = lane.ids[lane.start + 1 : lane.stop + 1]
        mask[row, :count] = 1

    def on_device(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(model.device)

    output = model(
        input_ids=on_device(inputs),
        attention_mask=on_device(mask),
        targets=on_device(labels),
        state=state,
        return_logits=False,
        return_losses=True,
    )
    return output.token_losses.cpu().double().numpy(), output.state


def _next_lanes(lanes: Sequence[Lane], waiting: deque[Lane], state: State) -> tuple[list[Lane], State]:
    """Let rows whose document has ended take a waiting one, or leave the batch when none waits."""
    following: list[Lane | None] = []
    taken: list[int] = []
    for row, lane in enumerate(lanes):
        if not lane.ended:
            following.append(lane)
        elif waiting:
            following.append(waiting.popleft())
            taken.append(row)
        else:
            following.append(None)
    if taken:
        state = state.reset(taken)
    kept = [row for row, lane in enumerate(following) if lane is not None]
    if len(kept) < len(lanes):
        state = state.select(torch.tensor(kept, dtype=torch.long))
    return [lane for lane in following if lane is not None], state
