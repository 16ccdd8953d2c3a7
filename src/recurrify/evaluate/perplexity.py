"""Losses of whole documents, read side by side, each from its first token to its last with carried state, or, where
nothing is carried, in pieces."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurrify.errors import UserError
from recurrify.evaluate.evaluation import Evaluation, ScoredDocument, Tally
from recurrify.evaluate.exchange import Exchange
from recurrify.mechanisms.base import NoRecurrence
from recurrify.modeling.heads import RecurrentForCausalLM, add_recurrence
from recurrify.modeling.model import RecurrentPreTrainedModel
from recurrify.state import State


class NamedTokens(Protocol):
    """As much of a document as reading it takes."""

    @property
    def name(self) -> str: ...
    @property
    def ids(self) -> np.ndarray: ...


def evaluate_documents(
    model: PreTrainedModel,
    documents: Sequence[ScoredDocument],
    *,
    window: int | None = None,
    overlap: int | None = None,
    rows: int = 8,
    windows_per_call: int = 8,
    bf16: bool = False,
    exchange_memories: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Score every token of every document except its first, exactly once.

    - `model` is a recurrent causal model, or a plain one, which then runs over windows without memory.
    - `window` and `overlap` are the model's own unless given; every setting scores the same tokens.
    - `rows` documents, or pieces of them where there is no memory, are read side by side, at most `windows_per_call`
      windows of each in one forward pass: the two bound the memory and do not change the result.
    - `bf16` computes in bfloat16 where the model is on a CUDA device; elsewhere it does nothing.
    - `exchange_memories` lets every window read what another document's window left: a control, which shows how much
      of a gain is memory.
    - `progress` is called after each forward pass with the number of tokens it scored.
    """
    check_counts(rows=rows, windows_per_call=windows_per_call)
    exchange = Exchange() if exchange_memories else None
    if exchange is not None:
        rows, windows_per_call = max(rows, 2), 1
    with scoring(model, documents, window, overlap, bf16) as recurrent:
        tally = Tally(documents, recurrent.recurrence.window, recurrent.recurrence.overlap)

        def read(lanes: Sequence[Lane], state: State) -> State:
            losses, after = _losses(recurrent, lanes, state)
            if exchange is not None:
                # What is passed on stays a document's own: written by windows that read another's, it would be both.
                losses, _ = _losses(recurrent, lanes, exchange([lane.document for lane in lanes], state))
            for lane, row in zip(lanes, losses, strict=True):
                scored = row[: lane.stop - lane.start]
                check_finite(scored, documents[lane.document], lane.start, "loss")
                tally.add(lane.document, lane.start, scored)
            return after

        if recurrent.mechanism is not None:
            read_side_by_side(recurrent, documents, read, rows, windows_per_call, progress)
        else:
            for lanes, state in pieces(recurrent, documents, rows, windows_per_call):
                read(lanes, state)
                if progress is not None:
                    progress(count_inputs(lanes))
    return tally.evaluation()


@contextmanager
def scoring(
    model: PreTrainedModel, documents: Sequence[NamedTokens], window: int | None, overlap: int | None, bf16: bool
) -> Iterator[RecurrentForCausalLM]:
    """The model, ready to score the documents, and as it was before afterwards."""
    with evaluation_mode(model):
        recurrent = as_recurrent(model, window, overlap)
        check_documents(documents, recurrent.base.config.vocab_size)
        half = bf16 and recurrent.device.type == "cuda"
        with (
            recurrence_settings(recurrent, window, overlap),
            torch.inference_mode(),
            torch.autocast("cuda", torch.bfloat16) if half else nullcontext(),
        ):
            yield recurrent


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


def as_recurrent(model: PreTrainedModel, window: int | None, overlap: int | None) -> RecurrentForCausalLM:
    recurrent: Any = model
    if not isinstance(model, RecurrentPreTrainedModel):
        settings = NoRecurrence(
            window=NoRecurrence.window if window is None else window,
            overlap=NoRecurrence.overlap if overlap is None else overlap,
        )
        recurrent = add_recurrence(model, settings)
    if not isinstance(recurrent, RecurrentForCausalLM):
        raise UserError(
            f"This needs a model that predicts the next token: got {type(model).__name__}; "
            "load it with AutoModelForCausalLM."
        )
    return recurrent


def check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise UserError(f"`{name}` must be at least 1: got {name}={value}.")


def check_finite(values: np.ndarray, document: NamedTokens, first: int, what: str) -> None:
    """`values` (tokens, …) come from predicting with the document's inputs `first`, `first + 1`, …"""
    finite = np.isfinite(values).reshape(len(values), -1).all(1)
    if not finite.all():
        raise UserError(
            f"The {what} of document {document.name!r} is not a finite number from token "
            f"{first + 1 + int(np.argmin(finite))} on: check the model's weights, or run it in float32."
        )


def check_documents(documents: Sequence[NamedTokens], vocabulary: int) -> None:
    if len(documents) == 0:
        raise UserError("There is nothing to evaluate: give at least one document.")
    for document in documents:
        if len(document.ids) < 2:
            raise UserError(
                f"Document {document.name!r} has {len(document.ids)} token(s), but scoring needs at least 2: "
                "leave it out."
            )
        check_ids(document.ids, f"Document {document.name!r}", vocabulary)


def check_ids(ids: np.ndarray, whose: str, vocabulary: int) -> None:
    largest = int(np.max(ids))
    # On a GPU such an id would end the process in the middle of a kernel.
    if largest >= vocabulary or int(np.min(ids)) < 0:
        raise UserError(
            f"{whose} has token ids up to {largest}, but the model knows 0 to {vocabulary - 1}: "
            "tokenize it with the model's own tokenizer."
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


def read_side_by_side(
    model: RecurrentForCausalLM,
    documents: Sequence[NamedTokens],
    read: Callable[[Sequence[Lane], State], State],
    rows: int,
    windows_per_call: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Call `read` with the coming inputs of each row and the state before them until all documents are read."""
    # The longest first: a long document begun last would be read alone, in an otherwise empty batch.
    longest_first = sorted(range(len(documents)), key=lambda index: -len(documents[index].ids))
    waiting = deque(Lane(index, np.asarray(documents[index].ids)) for index in longest_first)
    lanes = [waiting.popleft() for _ in range(min(rows, len(waiting)))]
    state = State.fresh(len(lanes), model.device)
    window, stride = model.recurrence.window, model.recurrence.stride
    while lanes:
        for lane in lanes:
            lane.advance(window, stride, windows_per_call)
        state = read(lanes, state)
        if progress is not None:
            progress(count_inputs(lanes))
        lanes, state = _next_lanes(lanes, waiting, state)


def count_inputs(lanes: Sequence[Lane]) -> int:
    """Of the coming call."""
    return sum(lane.stop - lane.start for lane in lanes)


def pieces(
    model: RecurrentForCausalLM, documents: Sequence[NamedTokens], rows: int, windows_per_call: int
) -> Iterator[tuple[Sequence[Lane], State]]:
    """Calls that read all windows of a model without memory, in any order: documents are cut where windows begin, so
    that no row waits for a longer document to end."""
    window, overlap, stride = model.recurrence.window, model.recurrence.overlap, model.recurrence.stride
    found: list[Lane] = []
    for index, document in enumerate(documents):
        lane = Lane(index, np.asarray(document.ids))
        while not lane.ended:
            lane.advance(window, stride, windows_per_call)
            found.append(replace(lane))
    found.sort(key=lambda lane: -count_inputs([lane]))  # the longest first: calls of one length
    for at in range(0, len(found), rows):
        lanes = found[at : at + rows]
        shared = [lane.ids[lane.start - overlap : lane.start] if lane.start else lane.ids[:0] for lane in lanes]
        yield lanes, _behind(shared, model.device)


def _behind(shared: Sequence[np.ndarray], device: torch.device) -> State:
    """The state of rows that stand in windows whose first tokens, already scored, are `shared` with the one before."""
    lengths = [len(ids) for ids in shared]
    tokens = np.zeros((len(shared), max(lengths)), dtype=np.int64)
    for row, ids in enumerate(shared):
        tokens[row, : len(ids)] = ids
    return State.fresh(len(shared))._replace(tokens=torch.from_numpy(tokens).to(device), lengths=torch.tensor(lengths))


class Batch(NamedTuple):
    """(rows, longest), each row from its first column on."""

    inputs: Tensor
    labels: Tensor
    """What follows each input, -100 behind a row's last."""
    mask: Tensor


def batch_of(lanes: Sequence[Lane], device: torch.device) -> Batch:
    """The lanes' coming inputs as one batch."""
    longest = max(lane.stop - lane.start for lane in lanes)
    inputs = np.zeros((len(lanes), longest), dtype=np.int64)
    labels, mask = np.full_like(inputs, -100), np.zeros_like(inputs)
    for row, lane in enumerate(lanes):
        count = lane.stop - lane.start
        inputs[row, :count] = lane.ids[lane.start : lane.stop]
        labels[row, :count] = lane.ids[lane.start + 1 : lane.stop + 1]
        mask[row, :count] = 1
    return Batch(*(torch.from_numpy(values).to(device) for values in (inputs, labels, mask)))


def _losses(model: RecurrentForCausalLM, lanes: Sequence[Lane], state: State) -> tuple[np.ndarray, State]:
    """One forward pass; the losses (rows, longest) in float64, each row from its first column on."""
    batch = batch_of(lanes, model.device)
    output = model(
        input_ids=batch.inputs,
        attention_mask=batch.mask,
        targets=batch.labels,
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
