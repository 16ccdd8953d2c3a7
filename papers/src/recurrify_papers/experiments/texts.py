"""What the recurrent models write after a context they can only remember: topics, and the texts themselves."""

from functools import lru_cache
from typing import Any

from recurrify.data.documents import load_documents
from recurrify.data.texts import pick_device, read_text
from recurrify.modeling.loading import load_model
from recurrify.results import load_result, provenance, save_result
from recurrify_papers.experiments import published
from recurrify_papers.experiments.catalogue import KINDS, Experiment, Rows, register
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.published import PAPER
from recurrify_papers.experiments.sizes import LABELS
from recurrify_papers.experiments.unit import Unit
from recurrify_papers.yoshida2020.continuations import continue_contexts, sample_contexts
from recurrify_papers.yoshida2020.topics import TopicModel, compare_topics, fit_topics

NEW_TOKENS = 30
SHOWN = 8
TOPICS = 20
TOPIC_TEXTS = 5_000
"""Training documents that the topics are learned from, as in the paper."""


def text_unit(lab: Lab, kind: str) -> Unit:
    return lab.unit("books", kind, seed=lab.size.seeds[0])


def text_units(lab: Lab) -> list[Unit]:
    return [text_unit(lab, kind) for kind in KINDS]


def written(lab: Lab, kind: str) -> dict[str, Any] | None:
    """Contexts and this kind's continuations, made once and kept; None where there is no model yet."""
    unit = text_unit(lab, kind)
    path = lab.folder / "continuations" / f"{unit.name}.json"
    if not unit.run_file.is_file():
        return None
    config = {
        "run": unit.name,
        "data": lab.source("books"),
        "contexts": lab.size.contexts,
        "new_tokens": NEW_TOKENS,
    }
    if unit.is_newer(path) and load_result(path)["provenance"]["config"] == config:
        return load_result(path)
    model, tokenizer = load_model(str(unit.run_folder / "model"))
    tokens, checksum = read_text(lab.source("books"), "valid", tokenizer, lab.say)
    contexts = sample_contexts(tokens, lab.size.contexts, window=lab.size.window)
    lab.say(f"{kind}: continuing {len(contexts)} contexts")
    ids = continue_contexts(model.to(pick_device()), contexts, NEW_TOKENS, batch=256)

    def decode(tokens: Any) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    result = {
        "kind": "continuations",
        "model": kind,
        "contexts": [decode(context.ids) for context in contexts],
        "first_tokens": [decode([context.next_token]) for context in contexts],
        "continuations": [decode(row) for row in ids],
        "provenance": provenance(config, data_checksum=checksum),
    }
    save_result(path, result)
    return result


def all_written(lab: Lab) -> tuple[dict[str, dict[str, Any]], list[str]]:
    found = {kind: written(lab, kind) for kind in KINDS}
    return {kind: texts for kind, texts in found.items() if texts}, [kind for kind in KINDS if not found[kind]]


@lru_cache(maxsize=1)
def topic_model(source: str) -> TopicModel:
    """Learned once for both experiments that need it."""
    documents = load_documents(source, "train")[:TOPIC_TEXTS]
    return fit_topics([document.text for document in documents], topics=TOPICS)


def topic_rows(lab: Lab) -> tuple[Rows, list[str]]:
    found, missing = all_written(lab)
    if "plain" not in found:
        return [], missing
    lab.say(f"learning {TOPICS} topics from {lab.source('books')}")
    rows = compare_topics(
        topic_model(lab.source("books")),
        found["plain"]["contexts"],
        {kind: texts["continuations"] for kind, texts in found.items()},
    )
    for row in rows:
        row["label"] = LABELS[row["kind"]]
        row["published"] = published.TOPICS.get(row["kind"])
        row["runs"] = [text_unit(lab, row["kind"]).name]
    return rows, missing


def continuation_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """The first few of the sampled contexts, not a selection."""
    found, missing = all_written(lab)
    if not found:
        return [], missing
    contexts = next(iter(found.values()))["contexts"][:SHOWN]
    topics = topic_model(lab.source("books")).name_topics(contexts)
    rows = [
        {
            "context": contexts[index],
            "topic": topics[index],
            "continuations": {
                kind: texts["first_tokens"][index] + texts["continuations"][index] for kind, texts in found.items()
            },
        }
        for index in range(len(contexts))
    ]
    return rows, missing


register(
    Experiment(
        name="topics",
        title="Whether continuations stay with the topic of their context",
        source=f"{PAPER}, section 5.3.1",
        layout="topics",
        units=text_units,
        rows=topic_rows,
        alone=True,
    )
)
register(
    Experiment(
        name="continuations",
        title="Greedy continuations after a context that only memory can reach",
        source=f"{PAPER}, Tables 4 and 5",
        layout="continuations",
        units=text_units,
        rows=continuation_rows,
        alone=True,
    )
)
