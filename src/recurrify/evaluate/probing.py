"""Scores of probes, read window by window with carried state, so that memory use does not grow with distance."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recurrify.data.probes_text import ProbeText
from recurrify.data.records import IGNORED
from recurrify.errors import UserError
from recurrify.evaluate.classification import share_interval
from recurrify.evaluate.perplexity import check_ids
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.modeling.model import token_losses
from recurrify.state import State

Progress = Callable[[int], None]


class ProbeScore(NamedTuple):
    """The accuracy at one distance."""

    accuracy: float
    """How often the right candidate is the most likely one."""
    interval: tuple[float, float]
    """Wilson's 95 % interval for the number of texts: answers of one text need not be independent."""
    probability: float
    """The mean probability of the right candidate among all candidates."""
    answers: int


def score_of(likelihoods: np.ndarray, right: np.ndarray, texts: int) -> ProbeScore:
    """The score of log likelihoods (answers, candidates), given the right candidates and the number of texts."""
    if not np.isfinite(likelihoods).all():
        raise UserError("The model returns values that are not finite: check its weights, or run it in float32.")
    shares = np.exp(likelihoods - likelihoods.max(axis=1, keepdims=True))
    rows = np.arange(len(right))
    # Equally likely candidates share the point, so that a model that cannot distinguish them scores chance.
    best = shares == 1
    points = best[rows, right] / best.sum(axis=1)
    accuracy = float(points.mean())
    return ProbeScore(
        accuracy=accuracy,
        interval=share_interval(accuracy * texts, texts),
        probability=float((shares[rows, right] / shares.sum(axis=1)).mean()),
        answers=len(right),
    )


@torch.inference_mode()
def score_texts(
    model: RecurrentForCausalLM,
    texts: Iterable[ProbeText],
    *,
    rows: int = 8,
    windows_per_call: int = 8,
    progress: Progress | None = None,
) -> ProbeScore:
    """Score texts of one distance by the likelihood of each candidate after the text.

    At most `rows` texts are taken at a time, so that they can be generated lazily. The model runs with its own window
    and without overlap; `progress` is called with the number of tokens read.
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
    asked = longest - min(len(before) for before, _ in endings)
    output = model(
        input_ids=inputs.to(model.device),
        attention_mask=mask.to(model.device),
        state=state.select(again),
        logits_to_keep=asked + 1,
    )
    if progress is not None:
        progress(len(texts) * longest)
    losses = token_losses(output.logits[:, :-1], labels[:, -asked:].to(model.device))
    return -losses.double().sum(dim=1).view(len(texts), count).cpu().numpy()


def read_windows(
    model: RecurrentForCausalLM, inputs: Tensor, windows_per_call: int, progress: Progress | None = None
) -> State:
    """The state after whole windows, read a few at a time."""
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
