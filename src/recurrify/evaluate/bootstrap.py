"""Bootstrap intervals over documents and training seeds.

Not `scipy.stats.bootstrap`: it resamples one level, and here documents and seeds are drawn together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recurrify.errors import UserError
from recurrify.evaluate.evaluation import METRICS, Evaluation


@dataclass(frozen=True)
class Gain:
    """The relative reduction of a metric: 0.05 means that the recurrent model's is 5 % lower."""

    relative_gain: float
    interval: tuple[float, float] | None
    within_noise: bool
    """Whether the interval contains 0, or there is none."""

    def __str__(self) -> str:
        """Such as "6.3 % lower (95 % interval 6.0 to 6.6 %)"."""
        text = _change(self.relative_gain)
        if self.interval is None:
            return f"{text} (one document: no interval)"
        if self.within_noise:
            return f"{text} (95 % interval {_change(self.interval[0])} to {_change(self.interval[1])}: within noise)"
        low, high = sorted(100 * abs(end) for end in self.interval)
        return f"{text} (95 % interval {low:.1f} to {high:.1f} %)"


def _change(gain: float) -> str:
    return f"{100 * abs(gain):.1f} % {'lower' if gain >= 0 else 'higher'}"


def interval(
    evaluation: Evaluation | Sequence[Evaluation],
    metric: str = "perplexity_per_word",
    samples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """The bootstrap interval of a metric over documents; None with a single document.

    Whole documents are drawn with replacement, since the tokens of one document are not independent. For several
    evaluations of the same documents, one per training seed, it is the interval of the mean, with seeds drawn too.
    """
    _check(samples, level, metric)
    found = [evaluation] if isinstance(evaluation, Evaluation) else list(evaluation)
    _check_same_documents([found], metric)
    if len(found[0].names) == 1:
        return None
    units = found[0].units(metric)
    documents, (seeds,) = _draws(seed, samples, len(units), (len(found),) if len(found) > 1 else ())
    totals, losses = units[documents].sum(1), _drawn_sums(np.stack([one.nll for one in found]), documents, seeds)
    of_seeds = [[METRICS[metric].value(loss, total) for loss, total in zip(one, totals, strict=True)] for one in losses]
    return _quantiles(np.mean(of_seeds, axis=0), level)


def relative_gain(
    plain: Evaluation | Sequence[Evaluation],
    recurrent: Evaluation | Sequence[Evaluation],
    metric: str = "perplexity_per_word",
    samples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    paired_seeds: bool = False,
) -> Gain:
    """The relative reduction of a metric from `plain` to `recurrent`, with its bootstrap interval.

    Both sides may be lists, one evaluation per training seed, whose metrics are averaged. Each bootstrap sample
    draws the same documents for both sides, and seeds for each side; with `paired_seeds` the same seeds, which is right
    if a seed gave both sides the same batches. With a single document there is no interval, and the gain counts as
    within noise.
    """
    sides = [[side] if isinstance(side, Evaluation) else list(side) for side in (plain, recurrent)]
    _check(samples, level, metric)
    value = _gain if METRICS[metric].is_perplexity else _loss_gain
    return _resampled(value, sides, metric, samples, seed, level, paired_seeds)


def _resampled(
    value: Callable[[Sequence[np.ndarray], np.ndarray], np.ndarray],
    sides: Sequence[Sequence[Evaluation]],
    metric: str,
    samples: int,
    seed: int,
    level: float,
    paired_seeds: bool,
) -> Gain:
    """`value` of the sides' losses (seeds, samples) and units (samples,), summed over documents, and its interval over
    documents and seeds."""
    _check_same_documents(sides, metric)
    counts = [len(side) for side in sides]
    if paired_seeds and len(set(counts)) > 1:
        raise UserError(f"Paired seeds need as many of each: got {' and '.join(map(str, counts))}.")
    units = sides[0][0].units(metric)
    losses = [np.stack([evaluation.nll for evaluation in side]) for side in sides]
    found = float(value([side.sum(1, keepdims=True) for side in losses], units.sum(keepdims=True))[0])
    if len(units) == 1:
        return Gain(found, None, within_noise=True)
    documents, seeds = _draws(seed, samples, len(units), tuple(counts))
    if paired_seeds:
        seeds = (seeds[0],) * len(sides)
    drawn = [_drawn_sums(side, documents, chosen) for side, chosen in zip(losses, seeds, strict=True)]
    low, high = _quantiles(value(drawn, units[documents].sum(1)), level)
    return Gain(found, (low, high), within_noise=low <= 0 <= high)


def _gain(losses: Sequence[np.ndarray], units: np.ndarray) -> np.ndarray:
    """`losses`: (seeds, samples) of the plain side and of the recurrent one."""
    # In logarithms, so that perplexities too large for a float compare; a sample may have no words at all.
    plain, recurrent = (_log_mean_perplexity(side / np.maximum(units, 1)) for side in losses)
    with np.errstate(over="ignore"):
        gains: np.ndarray = -np.expm1(recurrent - plain)
    return gains


def _loss_gain(losses: Sequence[np.ndarray], units: np.ndarray) -> np.ndarray:
    """The same for metrics that are losses, such as bits per character; their units cancel out."""
    plain, recurrent = (side.mean(0) for side in losses)
    gains: np.ndarray = 1 - recurrent / plain
    return gains


def _log_mean_perplexity(logs: np.ndarray) -> np.ndarray:
    mean: np.ndarray = np.logaddexp.reduce(logs) - np.log(len(logs))
    return mean


@lru_cache(maxsize=8)
def _draws(
    seed: int, samples: int, documents: int, counts: tuple[int, ...]
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Drawn documents (samples, documents) and, for each side, drawn seeds (samples, count). Cached, because tables use
    the same ones hundreds of times; without counts there is one side of one seed."""
    random = np.random.default_rng(seed)
    drawn = np.empty((samples, documents), dtype=np.int32)
    seeds = [np.zeros((samples, count), dtype=np.int32) for count in counts or (1,)]
    for sample in range(samples):
        drawn[sample] = random.integers(0, documents, documents)
        for side, count in zip(seeds, counts, strict=False):
            side[sample] = random.integers(0, count, count)
    return drawn, tuple(seeds)


def _drawn_sums(losses: np.ndarray, documents: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Losses (seeds, documents), resampled and summed over documents: (seeds, samples)."""
    sums = np.stack([one[documents].sum(1) for one in losses])
    return np.take_along_axis(sums, seeds.T, axis=0)


def _quantiles(values: np.ndarray, level: float) -> tuple[float, float]:
    outside = (1 - level) / 2
    # Infinite perplexities cannot be interpolated: take values that occur.
    low, high = np.quantile(values, [outside, 1 - outside], method="nearest")
    return float(low), float(high)


def _check(samples: int, level: float, metric: str) -> None:
    if metric not in METRICS:
        raise UserError(f"Unknown metric {metric!r}: choose one of {', '.join(METRICS)}.")
    if samples < 1:
        raise UserError(f"`samples` must be at least 1: got samples={samples}.")
    if not 0 < level < 1:
        raise UserError(f"`level` must lie between 0 and 1: got level={level}.")


def _check_same_documents(sides: Sequence[Sequence[Evaluation]], metric: str) -> None:
    """Raise a `UserError` unless all evaluations are of the same texts. Tokenizers may differ, except per token."""
    for name, side in zip(("plain", "recurrent"), sides, strict=False):
        if not side:
            raise UserError(f"`{name}` is empty: give one evaluation, or one per seed.")
    first = sides[0][0]
    for other in (evaluation for side in sides for evaluation in side):
        if other.names != first.names:
            raise UserError(
                "Only evaluations of the same documents, in the same order, can be compared: "
                f"got {_shortened(first.names)} and {_shortened(other.names)}."
            )
        for unit in dict.fromkeys(("words", "characters", METRICS[metric].unit)):
            different = np.flatnonzero(getattr(first, unit) != getattr(other, unit))
            if len(different):
                left, right = (getattr(one, unit)[different[0]] for one in (first, other))
                raise UserError(
                    f"Only evaluations of the same text can be compared: document {first.names[different[0]]!r} has "
                    f"{left} {unit} in one and {right} in another; use the same text for both, and per token the same "
                    "tokenizer."
                )


def _shortened(names: Sequence[str]) -> str:
    return f"{len(names)} documents ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
