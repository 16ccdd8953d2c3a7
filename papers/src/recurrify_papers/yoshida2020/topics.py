"""Whether a continuation stays with the topic of its context: an LDA topic model and distances between topics.

scikit-learn and scipy are imported where they are used: a machine without them can still do everything else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recurrify.errors import UserError
from recurrify.evaluate.perplexity import check_counts

WORDS_IN_NAME = 4
BOOTSTRAP_SAMPLES = 2000


@dataclass(frozen=True, eq=False)
class TopicModel:
    """Topics found in training text; `fit_topics` makes one."""

    vectorizer: Any
    """The CountVectorizer that knows the words."""
    lda: Any

    def distributions(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, topics), each row summing to 1. A text without any known word gets the prior's mean, which gives
        every topic the same."""
        found: np.ndarray = self.lda.transform(self.vectorizer.transform(texts))
        return found

    def known_words(self, texts: Sequence[str]) -> np.ndarray:
        """(texts,): how many words of each the topics are judged by."""
        return np.asarray(self.vectorizer.transform(texts).sum(1)).ravel()

    def top_words(self, count: int = 10) -> list[list[str]]:
        """The most likely words of each topic, the likeliest first."""
        names = self.vectorizer.get_feature_names_out()
        return [[str(names[index]) for index in np.argsort(-topic)[:count]] for topic in self.lda.components_]

    def name_topics(self, texts: Sequence[str]) -> list[str | None]:
        """The likeliest words of each text's likeliest topic; None where the text has no known word."""
        names = [", ".join(words) for words in self.top_words(WORDS_IN_NAME)]
        likeliest = self.distributions(texts).argmax(1)
        known = self.known_words(texts)
        return [names[topic] if words else None for topic, words in zip(likeliest, known, strict=True)]


def fit_topics(
    texts: Sequence[str],
    topics: int = 20,
    seed: int = 0,
    *,
    chunk_words: int | None = 1000,
    most_chunks: int | None = 5000,
    vocabulary: int = 10_000,
    fewest_chunks: int = 5,
    passes: int = 10,
) -> TopicModel:
    """Fit a topic model on training text.

    - Texts are cut into chunks of `chunk_words` words, each a document to the topic model: where books are few,
      they are too few documents. None fits on whole texts, as the paper does on 5,000 books.
    - Of more than `most_chunks` chunks a random sample is taken; None takes all.
    - The `vocabulary` most frequent words count, English stop words and words in fewer than `fewest_chunks` chunks
      left out. The paper does not say which words it counts.
    - `passes`: how often the chunks are gone through, in random order by `seed`.
    """
    from sklearn.decomposition import LatentDirichletAllocation
    from sklearn.feature_extraction.text import CountVectorizer

    check_counts(topics=topics, vocabulary=vocabulary, fewest_chunks=fewest_chunks, passes=passes)
    if chunk_words is not None:
        check_counts(chunk_words=chunk_words)
    chunks = [chunk for text in texts for chunk in _chunks(text, chunk_words)]
    if most_chunks is not None and len(chunks) > most_chunks:
        check_counts(most_chunks=most_chunks)
        kept = np.random.default_rng(seed).choice(len(chunks), most_chunks, replace=False)
        chunks = [chunks[index] for index in sorted(kept)]
    if len(chunks) < fewest_chunks:
        raise UserError(
            f"The texts give {len(chunks)} chunks of {chunk_words} words, but only words in at least {fewest_chunks} "
            "chunks are counted: give more text, smaller `chunk_words` or smaller `fewest_chunks`."
        )
    vectorizer = CountVectorizer(stop_words="english", max_features=vocabulary, min_df=fewest_chunks)
    try:
        counts = vectorizer.fit_transform(chunks)
    except ValueError as error:  # scikit-learn's way to say that no word is left
        raise UserError(
            f"No word but stop words stands in {fewest_chunks} or more of {len(chunks)} chunks: give more text, or "
            "smaller `fewest_chunks`."
        ) from error
    lda = LatentDirichletAllocation(n_components=topics, learning_method="online", max_iter=passes, random_state=seed)
    return TopicModel(vectorizer, lda.fit(counts))


def divergences(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(n,): the Jensen–Shannon divergence of each pair of distributions (n, topics), in bits, so between 0 and 1.

    It is the divergence, not its square root, which is called the Jensen–Shannon distance.
    """
    from scipy.special import rel_entr

    middle = (left + right) / 2
    nats = (rel_entr(left, middle) + rel_entr(right, middle)).sum(1) / 2
    # Equal distributions can come out a rounding error below 0.
    return np.maximum(nats, 0) / np.log(2)


def compare_topics(
    topic_model: TopicModel, contexts: Sequence[str], continuations: Mapping[str, Sequence[str]], seed: int = 0
) -> list[dict[str, Any]]:
    """How far each kind's continuations are from the topics of their contexts; one row per kind.

    - `divergence`: the mean Jensen–Shannon divergence in bits, with its 95 % bootstrap `interval` over contexts,
      the same draws for every kind. The paper gives neither its logarithm's base nor whether it took the square
      root, which scipy's function of that name does: `divergence_nats` and `distance` (the mean of the square
      root, in nats) are the other readings.
    - `closer_share`: of all contexts, those whose continuation is strictly closer than the plain one; `ties` are as
      far. `p_value`: the two-sided sign test on what is not tied. None for plain rows and where there are none.
    - `without_words`: continuations without any word that the topic model knows. They stay in, with the prior's
      mean for their topics, which is closer to a context than a wrong topic is: a model could gain by writing
      nothing but stop words. `with_words` therefore repeats the comparison on the contexts that every kind
      continues with a known word.

    Interval and p-value take contexts as independent; those of one book are less so than they assume.
    """
    if not contexts or not continuations:
        raise UserError("There is nothing to compare: give contexts and at least one kind of continuations.")
    for kind, texts in continuations.items():
        if len(texts) != len(contexts):
            raise UserError(f"{kind!r} has {len(texts)} continuations of {len(contexts)} contexts: give one for each.")
    of_contexts = topic_model.distributions(contexts)
    bits = {kind: divergences(of_contexts, topic_model.distributions(texts)) for kind, texts in continuations.items()}
    worded = {kind: topic_model.known_words(texts) > 0 for kind, texts in continuations.items()}
    kept = np.logical_and.reduce(list(worded.values()))
    plain = bits.get("plain")
    rows = []
    for kind, values in bits.items():
        other = None if kind == "plain" else plain
        rows.append(
            {
                "kind": kind,
                **_summary(values, other),
                "interval": _interval(values, seed),
                "divergence_nats": float(values.mean() * np.log(2)),
                "distance": float(np.sqrt(values * np.log(2)).mean()),
                "without_words": int((~worded[kind]).sum()),
                "with_words": _summary(values[kept], None if other is None else other[kept]) if kept.any() else None,
            }
        )
    return rows


def _summary(values: np.ndarray, plain: np.ndarray | None) -> dict[str, Any]:
    from scipy.stats import binomtest

    summary: dict[str, Any] = {"contexts": len(values), "divergence": float(values.mean())}
    if plain is None:
        return {**summary, "closer_share": None, "p_value": None, "ties": None}
    # Equal continuations are equally far but for rounding.
    tied = np.isclose(values, plain, rtol=0, atol=1e-12)
    closer, untied = int(((values < plain) & ~tied).sum()), int((~tied).sum())
    return {
        **summary,
        "closer_share": closer / len(values),
        "p_value": float(binomtest(closer, untied).pvalue) if untied else 1.0,
        "ties": int(tied.sum()),
    }


def _interval(values: np.ndarray, seed: int) -> list[float] | None:
    """None with a single context: drawn again, it is always itself."""
    if len(values) == 1:
        return None
    random = np.random.default_rng(seed)
    means = [values[random.integers(0, len(values), len(values))].mean() for _ in range(BOOTSTRAP_SAMPLES)]
    return [float(bound) for bound in np.quantile(means, [0.025, 0.975])]


def _chunks(text: str, words: int | None) -> Iterator[str]:
    if words is None:
        yield text
        return
    split = text.split()
    for start in range(0, len(split), words):
        yield " ".join(split[start : start + words])
