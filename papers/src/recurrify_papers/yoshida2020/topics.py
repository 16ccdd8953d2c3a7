"""Whether a continuation stays with the topic of its context: an LDA topic model and distances between topics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import rel_entr
from scipy.stats import binomtest, bootstrap
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer

from recurrify import UserError
from recurrify.data import load_documents
from recurrify.results import load_result, provenance
from recurrify_papers.plan import LABELS
from recurrify_papers.runner import RESULT_FILE, Say

WORDS_IN_NAME = 4
BOOTSTRAP_SAMPLES = 2000
CHUNK_WORDS, MOST_CHUNKS = 1000, 5000
"""Texts are cut into chunks, each a document to the topic model: a few books would be too few documents. The paper fits
on 5,000 whole books."""
VOCABULARY, FEWEST_CHUNKS = 10_000, 5
"""The most frequent words count, English stop words and words in fewer chunks left out."""
PASSES = 10


def topics_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Fit topics on training books, compare the continuations of several models, and show the first ones."""
    documents = load_documents(settings["data"], "train")[: settings["texts"]]
    say(f"learning {settings['topics']} topics from {settings['data']}")
    model = fit_topics([document.text for document in documents], topics=settings["topics"])
    found = {kind: load_result(Path(run) / RESULT_FILE) for kind, run in settings["runs"].items()}
    contexts = found["plain"]["contexts"]
    rows = compare_topics(model, contexts, {kind: texts["continuations"] for kind, texts in found.items()})
    topics = model.name_topics(contexts[: settings["shown"]])
    texts = [
        {"context": contexts[index], "topic": topic}
        | {LABELS[kind]: one["first_tokens"][index] + one["continuations"][index] for kind, one in found.items()}
        for index, topic in enumerate(topics)
    ]
    numbers = [number for row in rows for number in numbers_of(row)]
    return {"kind": "topics", "numbers": numbers, "examples": texts, "provenance": provenance(settings)}


def numbers_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The numbers of one kind in the table."""
    low, high = row["interval"] or (None, None)
    found = [{"metric": "divergence", "value": row["divergence"], "low": low, "high": high}]
    if row["closer_share"] is not None:
        note = f"p = {row['p_value']:.2g}, {row['ties']} ties of {row['contexts']} contexts"
        found.append({"metric": "closer share", "value": row["closer_share"], "note": note})
    for name in ("divergence_nats", "distance", "without_words"):
        found.append({"metric": name.replace("_", " "), "value": row[name]})
    if row["with_words"]:
        found.append({"metric": "divergence, texts with words", "value": row["with_words"]["divergence"]})
    return [{"label": LABELS[row["kind"]], "model": row["kind"], "split": "valid", **number} for number in found]


@dataclass(frozen=True, eq=False)
class TopicModel:
    """Topics found in training text; `fit_topics` makes one."""

    vectorizer: Any
    lda: Any

    def distributions(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, topics), each row summing to 1. A text without any known word gets the mean of the prior."""
        found: np.ndarray = self.lda.transform(self.vectorizer.transform(texts))
        return found

    def known_words(self, texts: Sequence[str]) -> np.ndarray:
        """(texts,): how many words of each are known."""
        return np.asarray(self.vectorizer.transform(texts).sum(1)).ravel()

    def name_topics(self, texts: Sequence[str]) -> list[str | None]:
        """The likeliest words of each text's likeliest topic; None where the text has no known word."""
        words = self.vectorizer.get_feature_names_out()
        names = [
            ", ".join(words[index] for index in np.argsort(-topic)[:WORDS_IN_NAME]) for topic in self.lda.components_
        ]
        likeliest = self.distributions(texts).argmax(1)
        known = self.known_words(texts)
        return [names[topic] if count else None for topic, count in zip(likeliest, known, strict=True)]


def fit_topics(
    texts: Sequence[str], topics: int = 20, seed: int = 0, *, chunk_words: int | None = CHUNK_WORDS
) -> TopicModel:
    """Fit a topic model on training text, cut into chunks of `chunk_words` words; None fits on whole texts."""
    chunks = [chunk for text in texts for chunk in _chunks(text, chunk_words)]
    if len(chunks) > MOST_CHUNKS:
        kept = np.random.default_rng(seed).choice(len(chunks), MOST_CHUNKS, replace=False)
        chunks = [chunks[index] for index in sorted(kept)]
    vectorizer = CountVectorizer(stop_words="english", max_features=VOCABULARY, min_df=min(FEWEST_CHUNKS, len(chunks)))
    try:
        counts = vectorizer.fit_transform(chunks)
    except ValueError as error:  # scikit-learn found no word that counts
        raise UserError(
            f"No word but stop words is in {FEWEST_CHUNKS} or more of {len(chunks)} chunks: give more text."
        ) from error
    lda = LatentDirichletAllocation(n_components=topics, learning_method="online", max_iter=PASSES, random_state=seed)
    return TopicModel(vectorizer, lda.fit(counts))


def divergences(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(n,): the Jensen–Shannon divergence of each pair of distributions (n, topics), in bits, so between 0 and 1.

    It is the divergence, not its square root, which is called the Jensen–Shannon distance.
    """
    middle = (left + right) / 2
    nats = (rel_entr(left, middle) + rel_entr(right, middle)).sum(1) / 2
    return np.maximum(nats, 0) / np.log(2)  # rounding can give less than 0


def compare_topics(
    topic_model: TopicModel, contexts: Sequence[str], continuations: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """How far each kind's continuations are from the topics of their contexts; one row per kind.

    - `divergence`: the mean Jensen–Shannon divergence in bits, with its 95 % bootstrap `interval` over contexts. The
      paper gives neither its logarithm's base nor whether it took the square root: `divergence_nats` and `distance`
      (the mean of the square root, in nats) are the other readings.
    - `closer_share`: of all contexts, those whose continuation is strictly closer than the plain one; `ties` are as
      far. `p_value`: the two-sided sign test without ties.
    - `without_words`: continuations without any known word. Their topics are the mean of the prior, which is closer to
      a context than a wrong topic is. `with_words` therefore repeats the comparison on the contexts that every kind
      continues with a known word.
    """
    of_contexts = topic_model.distributions(contexts)
    bits = {kind: divergences(of_contexts, topic_model.distributions(texts)) for kind, texts in continuations.items()}
    worded = {kind: topic_model.known_words(texts) > 0 for kind, texts in continuations.items()}
    kept = np.logical_and.reduce(list(worded.values()))
    rows = []
    for kind, values in bits.items():
        other = None if kind == "plain" else bits.get("plain")
        rows.append(
            {
                "kind": kind,
                **_summary(values, other),
                "interval": _interval(values),
                "divergence_nats": float(values.mean() * np.log(2)),
                "distance": float(np.sqrt(values * np.log(2)).mean()),
                "without_words": int((~worded[kind]).sum()),
                "with_words": _summary(values[kept], None if other is None else other[kept]) if kept.any() else None,
            }
        )
    return rows


def _summary(values: np.ndarray, plain: np.ndarray | None) -> dict[str, Any]:
    summary: dict[str, Any] = {"contexts": len(values), "divergence": float(values.mean())}
    if plain is None:
        return {**summary, "closer_share": None, "p_value": None, "ties": None}
    # Equal continuations are equally far but for rounding.
    tied = np.isclose(values, plain, rtol=0, atol=1e-12)
    closer, untied = int(((values < plain) & ~tied).sum()), int((~tied).sum())
    p_value = float(binomtest(closer, untied).pvalue) if untied else 1.0
    return {**summary, "closer_share": closer / len(values), "p_value": p_value, "ties": int(tied.sum())}


def _interval(values: np.ndarray) -> list[float] | None:
    """None with a single context: drawn again, it is always itself."""
    if len(values) == 1:
        return None
    drawn = bootstrap((values,), np.mean, n_resamples=BOOTSTRAP_SAMPLES, method="percentile", batch=100, random_state=0)
    return [float(bound) for bound in drawn.confidence_interval]


def _chunks(text: str, words: int | None) -> Iterator[str]:
    split = text.split()
    for start in range(0, len(split), words or max(1, len(split))):
        yield " ".join(split[start : start + (words or len(split))])
