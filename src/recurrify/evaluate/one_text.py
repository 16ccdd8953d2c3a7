"""One text read by a memory and by its base: in the memory's windows, at equal cost, and in the full context."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from recurrify.evaluate.bootstrap import interval, relative_gain
from recurrify.evaluate.comparison import matched_overlap, matched_window
from recurrify.evaluate.evaluation import Evaluation, Tally
from recurrify.evaluate.flops import full_flops_per_token
from recurrify.modeling.heads import RecurrentForCausalLM

CHUNK = 512
"""Tokens of a full context that are read at once."""


@dataclass(frozen=True)
class Setting:
    """One way to read a text."""

    role: str
    """"memory"; or of the base: "windows", "overlap", "longer window" or "full context"."""
    label: str
    window: int
    overlap: int
    flops: float
    """Per token, all matrix products."""


def fair_settings(model: RecurrentForCausalLM, length: int) -> list[Setting]:
    """The memory, and its base in the memory's windows, with the overlap and the longer window that cost as much as
    the memory, and in its full context; `length` is the text's, which no window exceeds."""
    window, base = model.recurrence.window, model.base
    price = full_flops_per_token(model)
    positions = getattr(base.config, "max_position_embeddings", None) or 1024
    longest = max(min(positions, length), window)

    def plain(window: int, overlap: int = 0) -> float:
        return full_flops_per_token(base, window, overlap)

    overlap = max(1, matched_overlap(base, price, window))
    longer = matched_window(base, price, window, longest)
    found = [
        Setting("memory", f"memory, windows of {window}", window, model.recurrence.overlap, price),
        Setting("windows", f"plain windows of {window}", window, 0, plain(window)),
        Setting("overlap", f"windows of {window}, overlap {overlap}", window, overlap, plain(window, overlap)),
        Setting("longer window", f"plain windows of {longer}", longer, 0, plain(longer)),
    ]
    if longest > longer:
        found.append(Setting("full context", f"full context of {longest}", longest, 0, plain(longest)))
    return found


@torch.inference_mode()
def full_context_losses(base: Any, ids: np.ndarray) -> np.ndarray:
    """(N − 1,): the loss of each token but the first, given all tokens before it; read in chunks to save memory."""
    tokens = torch.as_tensor(ids, dtype=torch.long)[None]
    cache, losses = None, []
    for first in range(0, len(ids) - 1, CHUNK):
        stop = min(first + CHUNK, len(ids) - 1)
        output = base(tokens[:, first:stop], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        losses.append(cross_entropy(output.logits[0].float(), tokens[0, first + 1 : stop + 1], reduction="none"))
    return torch.cat(losses).double().numpy()


@dataclass(frozen=True)
class Stretch:
    """A part of a text, resampled as if it were a document."""

    name: str
    ids: np.ndarray
    words: int
    characters: int
    bytes: int


def stretches(pieces: Sequence[str], length: int) -> list[Stretch]:
    """A text, given as the piece of it that each token adds, in parts of `length` scored tokens."""
    found = []
    for first in range(1, len(pieces), length):
        text = "".join(pieces[first : first + length])
        ids = np.zeros(min(length, len(pieces) - first) + 1, dtype=np.int64)
        sizes = (len(text.split()), len(text), len(text.encode("utf-8", errors="replace")))
        found.append(Stretch(f"tokens from {first}", ids, *sizes))
    return found


def comparison_rows(
    settings: Sequence[Setting], losses: Sequence[np.ndarray], pieces: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Table rows, and the gain of the memory over each other reading; the memory comes first in `settings`.

    Intervals resample parts of the text of one window each, the same for both readings.
    """
    length = settings[0].window
    parts = stretches(pieces, length)
    found: list[Evaluation] = []
    for one in losses:
        tally = Tally(parts, length, 0)
        for number, part in enumerate(parts):
            tally.add(number, 0, one[number * length : number * length + len(part.ids) - 1])
        found.append(tally.evaluation())
    rows = [
        {
            **asdict(setting),
            "model": setting.role,
            "full_flops_per_token": setting.flops,
            "perplexity_per_word": one.perplexity_per_word,
            "perplexity_per_token": one.perplexity_per_token,
            "perplexity_per_token_interval": interval(one, "perplexity_per_token"),
            "bits_per_character": one.bits_per_character,
            "loss_by_position": one.loss_by_position if setting.window == length and not setting.overlap else None,
        }
        for setting, one in zip(settings, found, strict=True)
    ]
    gains = [
        {
            "model": settings[0].role,
            "label": settings[0].label,
            "against": setting.role,
            "against_label": setting.label,
            "unit": "token",
            **asdict(relative_gain(one, found[0], metric="perplexity_per_token")),
        }
        for setting, one in zip(settings[1:], found[1:], strict=True)
    ]
    return rows, gains
