"""Topics of made-up vocabularies; divergences and tests compared with formulas."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from recurrify import UserError
from recurrify_papers.yoshida2020.topics import TopicModel, compare_topics, divergences, fit_topics

RIVERS = "river bank water boat stream flood shore current"
MONEY = "money dollar debt payment coin price wage purse"


def prose(vocabulary: str, words: int, seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(["the", "and", *vocabulary.split()], words))


@pytest.fixture(scope="module")
def fitted() -> TopicModel:
    return fit_topics([prose(RIVERS, 600, 1), prose(MONEY, 600, 2)], topics=2, chunk_words=20)


def test_a_continuation_is_closest_to_a_context_of_its_own_topic(fitted: TopicModel) -> None:
    context = fitted.distributions([prose(RIVERS, 50, 3), prose(MONEY, 50, 4)])
    continued = fitted.distributions(["the boat on the water", "a debt of one dollar"])
    np.testing.assert_allclose(context.sum(1), 1)
    same, other = divergences(context, continued), divergences(context, continued[::-1])
    assert (same < 0.2).all()
    assert (other > 0.5).all()


def test_topics_are_named_by_their_own_words(fitted: TopicModel) -> None:
    names = fitted.name_topics([prose(RIVERS, 50, 3), prose(MONEY, 50, 4), "and the xylophone"])
    assert names[2] is None
    for name, vocabulary in zip(names, (RIVERS, MONEY), strict=False):
        assert name is not None
        assert set(name.split(", ")) <= set(vocabulary.split())
        assert len(name.split(", ")) == 4


def test_stop_words_and_unknown_words_do_not_count(fitted: TopicModel) -> None:
    texts = ["the boat and the boat", "The XYLOPHONE", ""]
    assert fitted.known_words(texts).tolist() == [2, 0, 0]
    np.testing.assert_allclose(fitted.distributions(texts)[1:], 0.5)


def test_divergences_by_hand() -> None:
    left = np.array([[1, 0], [0.5, 0.5], [0.5, 0.5], [0.9, 0.1]])
    right = np.array([[0, 1], [0.5, 0.5], [1, 0], [0.1, 0.9]])
    half = (0.5 * math.log2(0.5 / 0.75) + 0.5 * math.log2(0.5 / 0.25) + math.log2(1 / 0.75)) / 2
    tenth = 0.9 * math.log2(0.9 / 0.5) + 0.1 * math.log2(0.1 / 0.5)
    np.testing.assert_allclose(divergences(left, right), [1, 0, half, tenth], atol=1e-15)


class Known(TopicModel):
    """The text is the chance of the first of two topics; an empty one has no known word."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def distributions(self, texts: Sequence[str]) -> np.ndarray:
        first = np.array([float(text or 0.5) for text in texts])
        return np.stack([first, 1 - first], 1)

    def known_words(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([len(text) for text in texts])


def bits(left: float, right: float) -> float:
    def entropy(chance: float) -> float:
        return -sum(part * math.log2(part) for part in (chance, 1 - chance) if part)

    return entropy((left + right) / 2) - (entropy(left) + entropy(right)) / 2


def test_rows_by_hand() -> None:
    contexts = ["0.9"] * 10
    plain = ["0.5"] * 9 + ["0.8"]
    # Closer seven times, farther once, as far twice, of which once with other words.
    carry = ["0.7"] * 7 + ["", "0.5", "0.6"]
    first, second = compare_topics(Known(), contexts, {"plain": plain, "carry": carry})
    assert first["kind"] == "plain"
    assert first["divergence"] == pytest.approx((9 * bits(0.9, 0.5) + bits(0.9, 0.8)) / 10)
    assert {first[key] for key in ("closer_share", "p_value", "ties")} == {None}
    assert first["without_words"] == 0
    distances = [bits(0.9, 0.7)] * 7 + [bits(0.9, 0.5)] * 2 + [bits(0.9, 0.6)]
    assert second["divergence"] == pytest.approx(np.mean(distances))
    assert second["divergence_nats"] == pytest.approx(np.mean(distances) * math.log(2))
    by_scipy = [jensenshannon([0.9, 0.1], [float(text or 0.5), 1 - float(text or 0.5)]) for text in carry]
    assert second["distance"] == pytest.approx(np.mean(by_scipy))
    assert second["closer_share"] == 0.7
    assert (second["ties"], second["contexts"], second["without_words"]) == (2, 10, 1)
    assert second["with_words"] == {
        "contexts": 9,
        "divergence": pytest.approx(np.mean(distances[:7] + distances[8:])),
        "closer_share": 7 / 9,
        "p_value": pytest.approx(2 * (math.comb(8, 7) + math.comb(8, 8)) / 2**8),
        "ties": 1,
    }
    # The same contexts count for every kind.
    assert first["with_words"]["divergence"] == pytest.approx((8 * bits(0.9, 0.5) + bits(0.9, 0.8)) / 9)
    # Seven or more of eight fair coins alike, either way.
    assert second["p_value"] == pytest.approx(2 * (math.comb(8, 7) + math.comb(8, 8)) / 2**8)


def test_the_interval_is_that_of_a_mean() -> None:
    random = np.random.default_rng(0)
    contexts, texts = ([f"{chance:.4f}" for chance in random.uniform(size=400)] for _ in range(2))
    (row,) = compare_topics(Known(), contexts, {"carry": texts})
    values = np.array([bits(float(left), float(right)) for left, right in zip(contexts, texts, strict=True)])
    error = values.std() / math.sqrt(len(values))
    assert row["interval"] == pytest.approx([values.mean() - 1.96 * error, values.mean() + 1.96 * error], rel=0.03)
    assert row["closer_share"] is None
    (alone,) = compare_topics(Known(), ["0.5"], {"carry": ["0.4"]})
    assert alone["interval"] is None


def test_equal_continuations_are_no_evidence() -> None:
    _, row = compare_topics(Known(), ["0.9", "0.1"], {"plain": ["0.5", "0.5"], "carry": ["0.5", ""]})
    assert (row["closer_share"], row["p_value"], row["ties"]) == (0, 1, 2)
    _, row = compare_topics(Known(), ["0.9"], {"plain": ["0.5"], "carry": ["0.50000000000000011"]})
    assert (row["closer_share"], row["ties"]) == (0, 1)
    (silent,) = compare_topics(Known(), ["0.9"], {"carry": [""]})
    assert silent["with_words"] is None


def test_texts_without_topics_raise() -> None:
    with pytest.raises(UserError, match="No word but stop words is in 5 or more of 5 chunks"):
        fit_topics(["the and of"] * 5)
