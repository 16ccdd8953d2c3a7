"""Losses of whole documents, read in parallel: from first to last token with carried state, or, without memory, in any
order of windows."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurrify.data.tokens import TokenizedDocument
from recurrify.errors import UserError
from recurrify.evaluate.evaluation import Evaluation, Tally
from recurrify.mechanisms.config import NoRecurrence
from recurrify.modeling.heads import RecurrentForCausalLM, add_recurrence
from recurrify.modeling.model import RecurrentOutput, RecurrentPreTrainedModel
from recurrify.modeling.sharding import is_sharded
from recurrify.state import State

MOST_TOKENS_PER_CALL = {"cpu": 1_024, "cuda": 32_768}
"""Larger calls are no faster, but delay progress reports and Ctrl-C."""


class StoppedEvaluation(Exception):  # noqa: N818 - not an error
    """The caller stopped an evaluation, in this process or in one that shares it."""


def evaluate_documents(
    model: PreTrainedModel,
    documents: Sequence[TokenizedDocument],
    *,
    window: int | None = None,
    overlap: int | None = None,
    rows: int = 8,
    windows_per_call: int | None = None,
    bf16: bool = False,
    change_state: Callable[[Sequence[int], State], State] | None = None,
    progress: Callable[[int], None] | None = None,
    shared: bool = False,
) -> Evaluation:
    """Score every token of every document except its first, exactly once.

    Args:
        model: A recurrent causal model, or a plain one, which runs over windows without memory.
        documents: The tokenized documents.
        window: Tokens in a window; by default the model's own. Every setting scores the same tokens.
        overlap: Tokens that each window shares with the one before; by default the model's own.
        rows: Documents (without memory, parts of documents) read in parallel, at most.
        windows_per_call: Windows of each row in one forward pass; by default 8, more if they are read in parallel, or
            fewer where they are long. Neither changes the result; both bound memory use.
        bf16: Compute in bfloat16 on CUDA devices.
        change_state: Called before each window with the documents of the rows and their state; returns the state that
            the window is scored with, for controls. The state that is carried on stays the documents' own.
        progress: Called with 0 at the start, then after each forward pass with the number of tokens that it scored. An
            exception that it raises, such as `KeyboardInterrupt`, ends the evaluation.
        shared: Divide the documents among the processes of torch.distributed. All of them call this, and get the same
            result; if one raises `StoppedEvaluation`, so do all.
    """
    check_counts(rows=rows, windows_per_call=1 if windows_per_call is None else windows_per_call)
    if change_state is not None:
        rows, windows_per_call = max(rows, 2), 1
    with scoring(model, documents, window, overlap, bf16) as recurrent:
        window = recurrent.recurrence.window
        most = MOST_TOKENS_PER_CALL.get(recurrent.device.type, MOST_TOKENS_PER_CALL["cuda"])
        if recurrent.device.type == "cpu" and change_state is None:
            rows = max(1, min(rows, most // window))
        if windows_per_call is None:
            windows_per_call = max(1, most // (min(rows, len(documents)) * window))
            if not _reads_in_parallel(recurrent):
                windows_per_call = min(8, windows_per_call)
        tally = Tally(documents, window, recurrent.recurrence.overlap)
        divided = shared and not is_sharded(recurrent)  # every pass of a sharded model needs all processes
        own = _own_share(documents) if divided else range(len(documents))
        mine = [documents[index] for index in own]
        if shared and not divided and progress is not None:
            progress = _together(progress, recurrent.device)

        def read(batch_rows: Sequence[BatchRow], state: State) -> State:
            losses, after = _losses(recurrent, batch_rows, state)
            if change_state is not None:
                losses, _ = _losses(recurrent, batch_rows, change_state([row.document for row in batch_rows], state))
            for row, found in zip(batch_rows, losses, strict=True):
                scored = found[: row.stop - row.start]
                check_finite(scored, mine[row.document], row.start, "loss")
                tally.add(own[row.document], row.start, scored)
            return after

        with _added_up(tally, recurrent.device) if divided else nullcontext():
            if progress is not None:
                progress(0)  # the clock of a progress bar starts here
            if recurrent.mechanism is not None:
                read_in_parallel(recurrent, mine, read, rows, windows_per_call, progress)
            else:
                for batch_rows, state in pieces(recurrent, mine, rows, windows_per_call):
                    read(batch_rows, state)
                    if progress is not None:
                        progress(count_inputs(batch_rows))
    return tally.evaluation()


def _reads_in_parallel(model: RecurrentPreTrainedModel) -> bool:
    """Whether it reads neighbouring windows at once."""
    return model.mechanism is None or model.mechanism.in_parallel


def _own_share(documents: Sequence[TokenizedDocument]) -> Sequence[int]:
    """The documents that this process scores: of about as many tokens in each."""
    longest_first = sorted(range(len(documents)), key=lambda index: -len(documents[index].ids))
    return longest_first[torch.distributed.get_rank() :: torch.distributed.get_world_size()]


@contextmanager
def _agreeing(device: torch.device) -> Iterator[None]:
    """Raise `StoppedEvaluation` in all processes if the block raises it in one of them."""
    stopped = torch.tensor(0, device=device)
    try:
        yield
    except StoppedEvaluation:
        stopped += 1
    torch.distributed.all_reduce(stopped)
    if stopped:
        raise StoppedEvaluation


def _together(progress: Callable[[int], None], device: torch.device) -> Callable[[int], None]:
    """`progress` for processes that run the same passes: it stops all of them at the same one."""

    def advance(tokens: int) -> None:
        with _agreeing(device):
            progress(tokens)

    return advance


@contextmanager
def _added_up(tally: Tally, device: torch.device) -> Iterator[None]:
    """Add up the tallies of all processes in the end."""
    with _agreeing(device):
        yield
    for sums in tally.sums:
        values = torch.from_numpy(sums).to(device)
        torch.distributed.all_reduce(values)
        sums[:] = values.cpu().numpy()


@contextmanager
def scoring(
    model: PreTrainedModel, documents: Sequence[TokenizedDocument], window: int | None, overlap: int | None, bf16: bool
) -> Iterator[RecurrentForCausalLM]:
    """The model set up for scoring; its own settings are restored afterwards."""
    with evaluation_mode(model):
        recurrent = as_recurrent(model, window, overlap)
        check_documents(documents, recurrent.base.config.vocab_size)
        with recurrence_settings(recurrent, window, overlap), torch.inference_mode(), half_precision(recurrent, bf16):
            yield recurrent


def half_precision(model: PreTrainedModel, bf16: bool) -> AbstractContextManager[Any]:
    """bfloat16 if it is asked for and the model is on a CUDA device."""
    return torch.autocast("cuda", torch.bfloat16) if bf16 and model.device.type == "cuda" else nullcontext()


@contextmanager
def evaluation_mode(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode; each module gets its own mode back afterwards, since parts may be frozen separately."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def recurrence_settings(model: RecurrentPreTrainedModel, window: int | None, overlap: int | None) -> Iterator[None]:
    """A temporary window and overlap; None keeps the model's own."""
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
    """The model itself if it is recurrent; a plain one in windows without memory."""
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
    """Raise a `UserError` for any value below 1."""
    for name, value in counts.items():
        if value < 1:
            raise UserError(f"`{name}` must be at least 1: got {name}={value}.")


def check_finite(values: np.ndarray, document: TokenizedDocument, first: int, what: str) -> None:
    """Raise a `UserError` for values (tokens, …) of the document's inputs from `first` on that are not finite."""
    finite = np.isfinite(values).reshape(len(values), -1).all(1)
    if not finite.all():
        raise UserError(
            f"The {what} of document {document.name!r} is not a finite number from token "
            f"{first + 1 + int(np.argmin(finite))} on: check the model's weights, or run it in float32."
        )


def check_documents(documents: Sequence[TokenizedDocument], vocabulary: int) -> None:
    """Raise a `UserError` for documents that a model with this vocabulary cannot score."""
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
    """Raise a `UserError` for token ids outside the vocabulary."""
    largest = int(np.max(ids))
    # On a GPU such an id ends the process with a device-side assertion.
    if largest >= vocabulary or int(np.min(ids)) < 0:
        raise UserError(
            f"{whose} has token ids up to {largest}, but the model knows 0 to {vocabulary - 1}: "
            "tokenize it with the model's own tokenizer."
        )


@dataclass
class BatchRow:
    """A row of the batch and the document it reads."""

    document: int
    ids: np.ndarray
    start: int = 0
    """The first input of the next call."""
    stop: int = 0
    """The end of its inputs."""

    @property
    def ended(self) -> bool:
        # The last token is predicted but never an input.
        return self.stop == len(self.ids) - 1

    def advance(self, window: int, stride: int, windows: int) -> None:
        """Choose the next call's inputs, up to the end of a window, so that no window runs twice."""
        fresh = window + (windows - 1) * stride if self.stop == 0 else windows * stride
        self.start, self.stop = self.stop, min(self.stop + fresh, len(self.ids) - 1)


def read_in_parallel(
    model: RecurrentForCausalLM,
    documents: Sequence[TokenizedDocument],
    read: Callable[[Sequence[BatchRow], State], State],
    rows: int,
    windows_per_call: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Call `read` with the next inputs of each row and the state before them until all documents are read."""
    # The longest first: a long document started last would be read alone.
    longest_first = sorted(range(len(documents)), key=lambda index: -len(documents[index].ids))
    waiting = deque(BatchRow(index, np.asarray(documents[index].ids)) for index in longest_first)
    batch_rows = [waiting.popleft() for _ in range(min(rows, len(waiting)))]
    state = State.fresh(len(batch_rows), model.device)
    window, stride = model.recurrence.window, model.recurrence.stride
    while batch_rows:
        for row in batch_rows:
            row.advance(window, stride, windows_per_call)
        state = read(batch_rows, state)
        if progress is not None:
            progress(count_inputs(batch_rows))
        batch_rows, state = _next_rows(batch_rows, waiting, state)


def count_inputs(batch_rows: Sequence[BatchRow]) -> int:
    """The inputs of the next call."""
    return sum(row.stop - row.start for row in batch_rows)


def pieces(
    model: RecurrentForCausalLM, documents: Sequence[TokenizedDocument], rows: int, windows_per_call: int
) -> Iterator[tuple[Sequence[BatchRow], State]]:
    """Calls that read all windows of a model without memory, in any order: documents are cut where windows begin, so
    that no row waits for a longer document."""
    window, overlap, stride = model.recurrence.window, model.recurrence.overlap, model.recurrence.stride
    found: list[BatchRow] = []
    for index, document in enumerate(documents):
        row = BatchRow(index, np.asarray(document.ids))
        while not row.ended:
            row.advance(window, stride, windows_per_call)
            found.append(replace(row))
    found.sort(key=lambda row: -count_inputs([row]))  # the longest first: calls of one length
    for at in range(0, len(found), rows):
        batch_rows = found[at : at + rows]
        shared = [row.ids[row.start - overlap : row.start] if row.start else row.ids[:0] for row in batch_rows]
        yield batch_rows, _behind(shared, model.device)


def _behind(shared: Sequence[np.ndarray], device: torch.device) -> State:
    """The state of rows whose windows begin with tokens `shared` with the window before, which are already scored."""
    lengths = [len(ids) for ids in shared]
    tokens = np.zeros((len(shared), max(lengths)), dtype=np.int64)
    for row, ids in enumerate(shared):
        tokens[row, : len(ids)] = ids
    return State.fresh(len(shared))._replace(tokens=torch.from_numpy(tokens).to(device), lengths=torch.tensor(lengths))


class Batch(NamedTuple):
    """(rows, longest), each row from its first column on."""

    inputs: Tensor
    labels: Tensor
    """The token after each input, -100 after a row's last."""
    mask: Tensor


def batch_of(batch_rows: Sequence[BatchRow], device: torch.device) -> Batch:
    """The next inputs of the rows as one batch."""
    longest = max(row.stop - row.start for row in batch_rows)
    inputs = np.zeros((len(batch_rows), longest), dtype=np.int64)
    labels, mask = np.full_like(inputs, -100), np.zeros_like(inputs)
    for index, row in enumerate(batch_rows):
        count = row.stop - row.start
        inputs[index, :count] = row.ids[row.start : row.stop]
        labels[index, :count] = row.ids[row.start + 1 : row.stop + 1]
        mask[index, :count] = 1
    return Batch(*(torch.from_numpy(values).to(device) for values in (inputs, labels, mask)))


def read_batch(model: RecurrentForCausalLM, batch_rows: Sequence[BatchRow], state: State) -> RecurrentOutput:
    """One forward pass over the next inputs of the rows, with the loss of each prediction."""
    batch = batch_of(batch_rows, model.device)
    output: RecurrentOutput = model(
        input_ids=batch.inputs,
        attention_mask=batch.mask,
        targets=batch.labels,
        state=state,
        return_logits=False,
        return_losses=True,
    )
    return output


def _losses(model: RecurrentForCausalLM, batch_rows: Sequence[BatchRow], state: State) -> tuple[np.ndarray, State]:
    """The losses (rows, longest) in float64, each row from its first column on."""
    output = read_batch(model, batch_rows, state)
    assert output.token_losses is not None
    assert output.state is not None
    return output.token_losses.cpu().double().numpy(), output.state


def _next_rows(batch_rows: Sequence[BatchRow], waiting: deque[BatchRow], state: State) -> tuple[list[BatchRow], State]:
    """Give rows whose document has ended a waiting one, or remove them if none waits."""
    following: list[BatchRow | None] = []
    taken: list[int] = []
    for index, row in enumerate(batch_rows):
        if not row.ended:
            following.append(row)
        elif waiting:
            following.append(waiting.popleft())
            taken.append(index)
        else:
            following.append(None)
    if taken:
        state = state.reset(taken)
    kept = [index for index, row in enumerate(following) if row is not None]
    if len(kept) < len(batch_rows):
        state = state.select(torch.tensor(kept, dtype=torch.long))
    return [row for row in following if row is not None], state
