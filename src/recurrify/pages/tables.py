"""The tables of a demo result as plain strings, for the page and the terminal alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from recurrify.pages import numbers

MODELS = ("base", "plain", "recurrent")
WEIGHTS = ("shipped", "live")
WEIGHTS_NAMES = {"shipped": "shipped weights", "live": "trained live just now"}


@dataclass(frozen=True)
class Table:
    caption: str
    header: list[str]
    rows: list[list[str]]
    text_columns: int
    """How many columns, from the left, hold words; the rest hold numbers."""


@dataclass(frozen=True)
class Score:
    """One model at one overlap: the mean over its seeds."""

    model: str
    overlap: int
    seeds: int
    perplexity: float | None
    """By the headline's unit."""
    spread: tuple[float, float] | None
    """Of that perplexity: the 95 % interval of a single row, or the range over seeds where there are several."""
    other_perplexity: float | None
    """By the other unit."""
    bits: float | None
    flops: float | None


def unit(result: Mapping[str, Any]) -> str:
    """What the headline counts by: words as the paper does, or tokens where words of the text mean little."""
    return "token" if result.get("unit") == "token" else "word"


def scores(result: Mapping[str, Any], weights: str) -> list[Score]:
    """All scores of the shipped or of the live pair, by model, then by overlap."""
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in result.get("rows") or []:
        if row.get("weights") == weights:
            key = (str(row.get("model")), int(row.get("overlap") or 0))
            groups.setdefault(key, []).append(row)
    ordered = sorted(groups, key=lambda key: (_model_order(key[0]), key[0], key[1]))
    return [_score(model, overlap, groups[model, overlap], unit(result)) for model, overlap in ordered]


def _model_order(model: str) -> int:
    return MODELS.index(model) if model in MODELS else len(MODELS)


def _score(model: str, overlap: int, rows: Sequence[Mapping[str, Any]], by: str) -> Score:
    values = {name: _values(rows, f"perplexity_per_{name}") for name in ("word", "token")}
    main, other = values[by], values["token" if by == "word" else "word"]
    if len(rows) == 1:
        spread = numbers.finite_pair(rows[0].get(f"perplexity_per_{by}_interval"))
    else:
        spread = (min(main), max(main)) if main else None
    return Score(
        model=model,
        overlap=overlap,
        seeds=len(rows),
        perplexity=_mean(main),
        spread=spread,
        other_perplexity=_mean(other),
        bits=_mean(_values(rows, "bits_per_character")),
        flops=_mean(_values(rows, "full_flops_per_token")),
    )


def _values(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    found = (numbers.finite(row.get(key)) for row in rows)
    return [value for value in found if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def score_table(result: Mapping[str, Any], weights: str) -> Table | None:
    """Perplexity and cost of one pair of models: the counterpart of the paper's Table 1."""
    found = scores(result, weights)
    if not found:
        return None
    seeds = max(score.seeds for score in found)
    if seeds > 1:
        caption = f"{_title(weights)}: mean over {seeds} seeds"
        spread = "range over seeds"
    else:
        caption = _title(weights)
        spread = "95 % interval"
    by = unit(result)
    other = "token" if by == "word" else "word"
    header = ["model", "overlap", f"perplexity per {by}", spread, f"perplexity per {other}"]
    header += ["bits per character", "FLOPs per token"]
    rows = [
        [
            score.model,
            str(score.overlap),
            numbers.perplexity(score.perplexity),
            numbers.perplexity_range(score.spread),
            numbers.perplexity(score.other_perplexity),
            numbers.bits(score.bits),
            numbers.large(score.flops),
        ]
        for score in found
    ]
    return Table(caption, header, rows, text_columns=1)


def _title(weights: str) -> str:
    name = WEIGHTS_NAMES.get(weights, weights)
    return name[:1].upper() + name[1:]


@dataclass(frozen=True)
class Gain:
    """By how much recurrence lowers perplexity at one overlap."""

    weights: str
    overlap: int
    relative: float
    interval: tuple[float, float] | None
    seeds: int | None
    within_noise: bool


def gains(result: Mapping[str, Any]) -> list[Gain]:
    """All gains that have a number: the shipped pair's first, then the live one's, by overlap."""
    found = [_gain(entry) for entry in result.get("gains") or []]
    known = [gain for gain in found if gain is not None]
    return sorted(known, key=lambda gain: (gain.weights != WEIGHTS[0], gain.weights, gain.overlap))


def _gain(entry: Mapping[str, Any]) -> Gain | None:
    relative = numbers.finite(entry.get("relative_gain"))
    if relative is None:
        return None
    interval = numbers.finite_pair(entry.get("interval"))
    within_noise = entry.get("within_noise")
    if within_noise is None:
        # A gain without an interval has not been told from noise.
        within_noise = interval is None or interval[0] <= 0 <= interval[1]
    return Gain(
        weights=str(entry.get("weights")),
        overlap=int(entry.get("overlap") or 0),
        relative=relative,
        interval=interval,
        seeds=entry.get("seeds"),
        within_noise=bool(within_noise),
    )


def gain_table(result: Mapping[str, Any]) -> Table | None:
    found = gains(result)
    if not found:
        return None
    rows = [
        [
            WEIGHTS_NAMES.get(gain.weights, gain.weights),
            str(gain.overlap),
            numbers.percent(gain.relative, signed=True),
            numbers.percent_range(gain.interval, signed=True),
            numbers.count(gain.seeds),
            _verdict(gain),
        ]
        for gain in found
    ]
    header = ["weights", "overlap", "gain", "95 % interval", "seeds", "verdict"]
    return Table(f"Recurrent against plain: drop of perplexity per {unit(result)}", header, rows, text_columns=1)


def _verdict(gain: Gain) -> str:
    if gain.within_noise:
        return "within noise"
    return "better" if gain.relative > 0 else "worse"
