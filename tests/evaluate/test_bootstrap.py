"""Intervals and gains of synthetic losses with known values."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recurrify import UserError
from recurrify.evaluate import Evaluation, interval, relative_gain

DOCUMENTS = 40


def made_up(nll: np.ndarray, words: np.ndarray | None = None, prefix: str = "document") -> Evaluation:
    words = np.full(len(nll), 100) if words is None else words
    return Evaluation(
        window=8,
        overlap=0,
        names=tuple(f"{prefix} {index}" for index in range(len(nll))),
        nll=np.asarray(nll, dtype=np.float64),
        tokens=words + 50,
        words=words,
        characters=words * 6,
        bytes=words * 7,
        loss_by_position=(None,) * 8,
        loss_by_window=(),
    )


def losses(seed: int = 0, documents: int = DOCUMENTS) -> np.ndarray:
    """Perplexities around e^4 per word, that differ much from document to document."""
    return 100 * np.random.default_rng(seed).normal(4.0, 0.3, documents)


def noise(seed: int, size: float, documents: int = DOCUMENTS) -> np.ndarray:
    return 100 * np.random.default_rng(seed).normal(0.0, size, documents)


@pytest.mark.parametrize(
    ("metric", "unit", "rate"),
    [
        ("perplexity_per_word", 1, math.exp),
        ("perplexity_per_token", 1.5, math.exp),
        ("bits_per_character", 6, lambda loss: loss / math.log(2)),
        ("bits_per_byte", 7, lambda loss: loss / math.log(2)),
    ],
)
def test_interval_has_the_expected_width(metric: str, unit: float, rate: Any) -> None:
    nll = losses()
    found = interval(made_up(nll), metric)
    assert found is not None
    mean, error = nll.mean() / 100, nll.std() / 100 / math.sqrt(DOCUMENTS)
    expected = [rate((mean + sign * 1.96 * error) / unit) for sign in (-1, 1)]
    assert list(found) == pytest.approx(expected, rel=0.02)
    assert found[0] < made_up(nll).metric(metric) < found[1]


def test_interval_depends_only_on_seed_and_level() -> None:
    made = made_up(losses())
    assert interval(made) == interval(made)
    assert interval(made) != interval(made, seed=1)
    narrow, wide = interval(made, level=0.5), interval(made, level=0.99)
    assert narrow is not None
    assert wide is not None
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_interval_of_infinite_perplexities() -> None:
    assert interval(made_up(np.array([1e6, 2e6, 3e6]))) == (math.inf, math.inf)


def test_single_document_has_no_interval() -> None:
    one = made_up(losses(documents=1))
    assert interval(one) is None
    gain = relative_gain([one, one], made_up(one.nll * 0.9))
    assert gain.interval is None
    assert gain.within_noise
    assert gain.relative_gain > 0


def test_known_difference() -> None:
    plain = losses()
    recurrent = plain + 100 * math.log(0.95) + noise(1, 0.02)
    gain = relative_gain(made_up(plain), made_up(recurrent))
    assert gain.interval is not None
    assert gain.interval[0] < 0.05 < gain.interval[1]
    # Documents differ by far more than 5 %: only paired drawing detects it.
    assert gain.interval[1] - gain.interval[0] < 0.03
    assert not gain.within_noise
    back = relative_gain(made_up(recurrent), made_up(plain))
    assert back.relative_gain < 0
    assert not back.within_noise


def test_no_difference_is_within_noise() -> None:
    plain = losses()
    gain = relative_gain(made_up(plain), made_up(plain + noise(3, 0.1)))
    assert gain.within_noise
    same = relative_gain(made_up(plain), made_up(plain))
    assert same.relative_gain == 0
    assert same.interval == (0, 0)
    assert same.within_noise


def test_differing_seeds_widen_the_interval() -> None:
    plain = losses()
    steady = [made_up(plain + 100 * math.log(0.97)) for _ in range(3)]
    shaky = [made_up(plain + 100 * math.log(factor)) for factor in (0.90, 0.97, 1.04)]
    sure, unsure = (relative_gain([made_up(plain)] * 3, side) for side in (steady, shaky))
    assert sure.relative_gain == pytest.approx(0.03)
    assert unsure.relative_gain == pytest.approx(0.03)
    assert not sure.within_noise
    assert unsure.within_noise


def test_lists_may_differ_in_length() -> None:
    plain = losses()
    pair = [made_up(plain * 0.98), made_up(plain * 0.97)]
    gain = relative_gain(made_up(plain), pair)
    mean = np.mean([evaluation.perplexity_per_word for evaluation in pair])
    assert gain.relative_gain == pytest.approx(1 - mean / made_up(plain).perplexity_per_word)


def test_gain_of_overflowing_perplexities() -> None:
    plain = np.array([1e6, 2e6, 3e6])
    gain = relative_gain(made_up(plain), made_up(plain + 100 * math.log(0.9)))
    assert gain.relative_gain == pytest.approx(0.1)
    assert relative_gain(made_up(plain), made_up(plain * 2)).relative_gain == -math.inf


def test_evaluations_of_different_text_raise() -> None:
    plain = made_up(losses())
    with pytest.raises(UserError, match="same documents"):
        relative_gain(plain, made_up(losses(), prefix="another"))
    with pytest.raises(UserError, match=r"got 40 documents .* and 39 documents"):
        relative_gain(plain, made_up(losses()[:-1]))
    words = np.full(DOCUMENTS, 100)
    words[7] = 99
    with pytest.raises(UserError, match="document 'document 7' has 100 words in one and 99 in another"):
        relative_gain([plain, plain], [plain, made_up(losses(), words)])


def test_other_tokenizers_compare_per_character_but_not_per_token() -> None:
    plain, nll = made_up(losses()), losses()
    other = replace(made_up(0.9 * nll), tokens=plain.tokens + 1)
    with pytest.raises(UserError, match="has 150 tokens in one and 151 in another"):
        relative_gain(plain, other, "perplexity_per_token")
    gain = relative_gain(plain, other, "bits_per_character")
    assert gain.relative_gain == pytest.approx(0.1)
    assert gain.interval == pytest.approx((0.1, 0.1))
    assert str(gain) == "10.0 % lower (95 % interval 10.0 to 10.0 %)"


@pytest.mark.parametrize("change", [{"samples": 0}, {"level": 1.0}, {"level": 0.0}])
def test_invalid_settings_raise(change: dict[str, Any]) -> None:
    plain = made_up(losses())
    with pytest.raises(UserError, match=next(iter(change))):
        interval(plain, **change)
    with pytest.raises(UserError, match=next(iter(change))):
        relative_gain(plain, plain, **change)


def test_unknown_metric_and_empty_list_raise() -> None:
    with pytest.raises(UserError, match="choose one of perplexity_per_word"):
        interval(made_up(losses()), "accuracy")
    with pytest.raises(UserError, match="`recurrent` is empty"):
        relative_gain(made_up(losses()), [])


def test_paired_seeds() -> None:
    """Seeds move both sides by far more than the gain: only pairing detects it."""
    shared = [losses() + shift for shift in (0.0, 20.0, 40.0)]
    plain = [made_up(nll) for nll in shared]
    recurrent = [made_up(nll - 2.0) for nll in shared]
    assert relative_gain(plain, recurrent).within_noise
    paired = relative_gain(plain, recurrent, paired_seeds=True)
    assert not paired.within_noise
    assert paired.relative_gain == pytest.approx(1 - math.exp(-0.02))
    with pytest.raises(UserError, match="got 3 and 2"):
        relative_gain(plain, recurrent[:2], paired_seeds=True)
