"""What a model remembers: probes read window by window with carried state, in the memory of a few windows."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recurrify.data.probes import IGNORED, SymbolProbe, SymbolTexts
from recurrify.data.probes_text import ProbeText
from recurrify.errors import UserError
from recurrify.evaluate.perplexity import check_ids
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.state import State

NORMAL_95 = 1.959964
Progress = Callable[[int], None]


class ProbeScore(NamedTuple):
    """Of the answers at one distance."""

    accuracy: float
    """How often the right candidate was the likeliest one."""
    interval: tuple[float, float]
    """Wilson's, 95 %, by the number of texts: answers of the same text need not be independent."""
    probability: float
    """What the right candidate got on average, all candidates together getting 1."""
    answers: int


def score_of(likelihoods: np.ndarray, right: np.ndarray, texts: int) -> ProbeScore:
    """From log likelihoods (answers, candidates) and the right candidate of each answer, out of so many texts."""
    if not np.isfinite(likelihoods).all():
        raise UserError("The model gives numbers that are not finite: check its weights, or run it in float32.")
    shares = np.exp(likelihoods - likelihoods.max(axis=1, keepdims=True))
    rows = np.arange(len(right))
    # Candidates that are equally likely share the point: a model that cannot tell them apart is right by chance.
    best = shares == 1
    points = best[rows, right] / best.sum(axis=1)
    accuracy = float(points.mean())
    return ProbeScore(
        accuracy=accuracy,
        interval=wilson(accuracy, texts),
        probability=float((shares[rows, right] / shares.sum(axis=1)).mean()),
        answers=len(right),
    )


def wilson(share: float, count: int) -> tuple[float, float]:
    """The interval of a share that was counted so many times."""
    scaled = NORMAL_95**2 / count
    middle = (share + scaled / 2) / (1 + scaled)
    half = math.sqrt(share * (1 - share) * scaled + scaled**2 / 4) / (1 + scaled)
    return max(0.0, middle - half), min(1.0, middle + half)


@torch.inference_mode()
def score_texts(
    model: RecurrentForCausalLM,
    texts: Iterable[ProbeText],
    *,
    rows: int = 8,
    windows_per_call: int = 8,
    progress: Progress | None = None,
) -> ProbeScore:
    """Score texts of one distance by the likelihood of each candidate after all that was read before.

    No more than `rows` texts are taken at a time, so they may be made as they are needed. The model runs with its own
    window and without overlap; `progress` is called with how many tokens were read.
    """
    coming = iter(texts)
    found: list[np.ndarray] = []
    right: list[int] = []
    while batch := list(islice(coming, rows)):
        found.append(_candidate_likelihoods(model, batch, windows_per_call, progress))
        right += [text.answer for text in batch]
    return score_of(np.concatenate(found), np.array(right), len(right))


def _candidate_likelihoods(
    model: RecurrentForCausalLM, texts: Sequence[ProbeText], windows_per_call: int, progress: Progress | None
) -> np.ndarray:
    """(texts, candidates)"""
    window = _window_without_overlap(model)
    for text in texts:
        ids = np.concatenate([text.ids, *text.candidates])
        check_ids(ids, "A probe", int(model.base.config.vocab_size))
    last = (len(texts[0].ids) - 1) // window * window
    whole = torch.from_numpy(np.stack([text.ids[:last] for text in texts])).to(model.device)
    state = read_windows(model, whole, windows_per_call, progress)
    count = len(texts[0].candidates)
    endings = [(text.ids[last:], candidate) for text in texts for candidate in text.candidates]
    longest = max(len(before) + len(candidate) for before, candidate in endings)
    if longest > window:
        raise UserError(f"The last window of a probe has {longest} tokens, but the model's windows have {window}.")
    inputs = torch.zeros(len(endings), longest, dtype=torch.long)
    labels, mask = torch.full_like(inputs, IGNORED), torch.zeros_like(inputs)
    for row, (before, candidate) in enumerate(endings):
        stop = len(before) + len(candidate)
        inputs[row, :stop] = torch.from_numpy(np.concatenate([before, candidate]))
        labels[row, len(before) : stop] = inputs[row, len(before) : stop]
        mask[row, :stop] = 1
    again = torch.arange(len(texts)).repeat_interleave(count)
    output = model(
        input_ids=inputs.to(model.device),
        attention_mask=mask.to(model.device),
        labels=labels.to(model.device),
        state=state.select(again),
        return_logits=False,
        return_losses=True,
    )
    if progress is not None:
        progress(len(texts) * longest)
    return -output.token_losses.double().sum(dim=1).view(len(texts), count).cpu().numpy()


@torch.inference_mode()
def score_symbols(
    model: RecurrentForCausalLM,
    probe: SymbolProbe,
    texts: SymbolTexts,
    *,
    rows: int = 64,
    windows_per_call: int = 8,
    progress: Progress | None = None,
) -> ProbeScore:
    """Score sequences of one distance: which of the answers' symbols is likeliest where one is due."""
    window = _window_without_overlap(model)
    last = texts.inputs.shape[1] - window
    symbols = list(probe.answer_symbols)
    likelihoods, right = [], []
    for first in range(0, len(texts.inputs), rows):
        inputs = torch.from_numpy(texts.inputs[first : first + rows]).to(model.device)
        targets = torch.from_numpy(texts.targets[first : first + rows, last:])
        state = read_windows(model, inputs[:, :last], windows_per_call, progress)
        logits = model(input_ids=inputs[:, last:], state=state).logits[:, :, symbols].float().cpu()
        due = targets != IGNORED
        likelihoods.append(logits[due].double().log_softmax(dim=1).numpy())
        right.append(targets[due].numpy() - symbols[0])
        if progress is not None:
            progress(inputs.shape[0] * window)
    return score_of(np.concatenate(likelihoods), np.concatenate(right), len(texts.inputs))


def read_windows(
    model: RecurrentForCausalLM, inputs: Tensor, windows_per_call: int, progress: Progress | None = None
) -> State:
    """What is remembered of whole windows, read a few at a time."""
    state = State.fresh(len(inputs), model.device)
    step = windows_per_call * model.recurrence.window
    for start in range(0, inputs.shape[1], step):
        part = inputs[:, start : start + step]
        state = model(input_ids=part, state=state, logits_to_keep=1).state
        if progress is not None:
            progress(part.numel())
    return state


def _window_without_overlap(model: RecurrentForCausalLM) -> int:
    if model.recurrence.overlap:
        raise UserError(
            f"Probes count windows without overlap, but the model has overlap={model.recurrence.overlap}: "
            "call model.set_recurrence(overlap=0)."
        )
    return model.recurrence.window
