"""Losses by document and the metrics computed from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recurrify.data.tokens import TokenizedDocument
from recurrify.windows import check_window

WINDOWS_KEPT = 64
"""The number of windows in `Evaluation.loss_by_window`."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Negative log likelihoods (nats), one entry per document, in the order the documents were given."""

    window: int
    overlap: int
    names: tuple[str, ...]
    nll: np.ndarray
    """(documents,) float64: summed over the document's tokens."""
    tokens: np.ndarray
    """(documents,) int64: tokens scored, which are all but the first."""
    words: np.ndarray
    """(documents,) int64: whitespace words."""
    characters: np.ndarray
    bytes: np.ndarray
    loss_by_position: tuple[float | None, ...]
    """Mean loss at each position of the window. None in the overlap, whose tokens the window before has scored. (A
    document's first window scores it too, but without context, so that its values would not compare.)"""
    loss_by_window: tuple[float, ...]
    """Mean loss in the documents' first, second, … window; at most the first 64."""

    @property
    def total_nll(self) -> float:
        return float(self.nll.sum())

    @property
    def perplexity_per_token(self) -> float:
        return self.metric("perplexity_per_token")

    @property
    def perplexity_per_word(self) -> float:
        return self.metric("perplexity_per_word")

    @property
    def bits_per_character(self) -> float:
        return self.metric("bits_per_character")

    def metric(self, name: str) -> float:
        """The value of a metric in `METRICS`."""
        return METRICS[name].value(self.total_nll, int(self.units(name).sum()))

    def units(self, metric: str) -> np.ndarray:
        """(documents,): the units that the metric divides losses by."""
        units: np.ndarray = getattr(self, METRICS[metric].unit)
        return units

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON types; a perplexity may be infinite."""
        columns = {
            "name": list(self.names),
            "nll": self.nll.tolist(),
            "tokens": self.tokens.tolist(),
            "words": self.words.tolist(),
            "characters": self.characters.tolist(),
            "bytes": self.bytes.tolist(),
        }
        return {
            "window": self.window,
            "overlap": self.overlap,
            **{name: self.metric(name) for name in METRICS},
            "tokens": int(self.tokens.sum()),
            "words": int(self.words.sum()),
            "loss_by_position": list(self.loss_by_position),
            "loss_by_window": list(self.loss_by_window),
            "documents": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Evaluation":
        """The inverse of `to_dict`."""
        rows = values["documents"]
        return cls(
            window=values["window"],
            overlap=values["overlap"],
            names=tuple(row["name"] for row in rows),
            nll=np.array([row["nll"] for row in rows], dtype=np.float64),
            **{
                unit: np.array([row[unit] for row in rows], dtype=np.int64)
                for unit in ("tokens", "words", "characters", "bytes")
            },
            loss_by_position=tuple(values["loss_by_position"]),
            loss_by_window=tuple(values["loss_by_window"]),
        )


@dataclass(frozen=True)
class Metric:
    """A rate: loss per unit of text."""

    unit: str
    """The field of `Evaluation` that counts the units."""
    is_perplexity: bool

    def value(self, nll: float, units: int) -> float:
        """The metric; infinite if it is too large for a float or there are no units."""
        if units == 0:
            return math.inf
        if not self.is_perplexity:
            return nll / units / math.log(2)
        try:
            return math.exp(nll / units)
        except OverflowError:
            return math.inf


METRICS = {
    "perplexity_per_word": Metric("words", is_perplexity=True),
    "perplexity_per_token": Metric("tokens", is_perplexity=True),
    "bits_per_character": Metric("characters", is_perplexity=False),
    "bits_per_byte": Metric("bytes", is_perplexity=False),
}


class Tally:
    """Sums losses, part by part, into an `Evaluation`."""

    def __init__(self, documents: Sequence[TokenizedDocument], window: int, overlap: int) -> None:
        check_window(window, overlap)
        self.documents, self.window, self.overlap = documents, window, overlap
        self.nll = np.zeros(len(documents))
        self.tokens = np.zeros(len(documents), dtype=np.int64)
        self.position_loss, self.position_count = np.zeros(window), np.zeros(window, dtype=np.int64)
        self.window_loss = np.zeros(WINDOWS_KEPT)
        self.window_count = np.zeros(WINDOWS_KEPT, dtype=np.int64)

    @property
    def sums(self) -> tuple[np.ndarray, ...]:
        """The sums and counts that `add` changes."""
        positions, windows = (self.position_loss, self.position_count), (self.window_loss, self.window_count)
        return self.nll, self.tokens, *positions, *windows

    def add(self, document: int, first: int, losses: np.ndarray) -> None:
        """Add the losses (float64) of predictions from the document's inputs `first`, `first + 1`, …"""
        self.nll[document] += losses.sum()
        self.tokens[document] += len(losses)
        inputs = first + np.arange(len(losses))
        stride = self.window - self.overlap
        windows = np.where(inputs < self.window, 0, (inputs - self.window) // stride + 1)
        positions = inputs - windows * stride
        _add_up(self.position_loss, self.position_count, positions, losses, positions >= self.overlap)
        _add_up(self.window_loss, self.window_count, windows, losses, windows < WINDOWS_KEPT)

    def evaluation(self) -> Evaluation:
        by_window = _means(self.window_loss, self.window_count)
        return Evaluation(
            window=self.window,
            overlap=self.overlap,
            names=tuple(document.name for document in self.documents),
            nll=self.nll,
            tokens=self.tokens,
            words=self._sizes("words"),
            characters=self._sizes("characters"),
            bytes=self._sizes("bytes"),
            loss_by_position=tuple(_means(self.position_loss, self.position_count)),
            # Every window follows the ones before it, so None occurs only at the end.
            loss_by_window=tuple(loss for loss in by_window if loss is not None),
        )

    def _sizes(self, unit: str) -> np.ndarray:
        return np.array([getattr(document, unit) for document in self.documents], dtype=np.int64)


def _add_up(sums: np.ndarray, counts: np.ndarray, places: np.ndarray, values: np.ndarray, kept: np.ndarray) -> None:
    sums += np.bincount(places[kept], weights=values[kept], minlength=len(sums))
    counts += np.bincount(places[kept], minlength=len(counts))


def _means(sums: np.ndarray, counts: np.ndarray) -> list[float | None]:
    return [float(total / count) if count else None for total, count in zip(sums, counts, strict=True)]
