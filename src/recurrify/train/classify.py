"""Classification of texts: training, scores and predictions."""

import csv
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import confusion_matrix
from transformers import AutoConfig, set_seed

from recurrify.console import progress_bar
from recurrify.data.labelled import LabelledTexts, hold_out, load_labelled, shortened
from recurrify.data.labelled_windows import collate_texts, tokenize_texts
from recurrify.data.texts import Say
from recurrify.errors import UserError
from recurrify.evaluate.answers import mean_interval
from recurrify.evaluate.classification import classification_metrics, share_interval
from recurrify.evaluate.flops import memory_cost
from recurrify.hub_access import trusts_remote_code
from recurrify.modeling.loading import resolve_name
from recurrify.modeling.task_heads import RecurrentForSequenceClassification
from recurrify.modeling.task_loading import load_task_model
from recurrify.results import check_overwrites_nothing, provenance, write_whole
from recurrify.train.loop import TrainOutcome, train_examples, uses_bf16
from recurrify.train.run_folder import (
    begin_run,
    check_vocabulary,
    complete_run,
    count_parameters,
    earlier_result,
    recorded,
)
from recurrify.train.settings import ClassifySettings
from recurrify.windows import schedule

PREDICTION_FILES = (".csv", ".jsonl")


@dataclass(frozen=True)
class Classifier:
    """A model, its tokenizer and its name."""

    name: str
    model: RecurrentForSequenceClassification
    tokenizer: Any

    @property
    def classes(self) -> list[str]:
        named: dict[int, str] = self.model.config.id2label
        return [str(named[number]) for number in sorted(named)]

    def tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The texts as this model reads them: a decoder in one stream, an encoder in windows with their own start.

        A decoder without a memory classifies by its last window: it gets the last tokens of a text, a full window.
        """
        window, causal = self.model.recurrence.window, self.model.family.causal
        found = tokenize_texts(texts, self.tokenizer, None if causal else window)
        if causal and self.model.mechanism is None:
            found = [ids[-window:] for ids in found]
        check_vocabulary(self.model, found, self.name)
        return found


def classify_train(settings: ClassifySettings, say: Say) -> dict[str, Any]:
    """Train as the settings say, then score the test texts; model and result are left in `settings.out`."""
    started = time.time()
    given = read_labelled(settings.data, settings, say)
    classes = list(given.counts)
    if len(classes) < 2:
        raise UserError(f"All texts of {settings.data} have the class {classes[0]!r}: at least two are needed.")
    if settings.test is None:
        texts, test = hold_out(given, settings.seed)
        say(f"held out for the test: {test.summary()}")
    else:
        texts, test = given, read_labelled(settings.test, settings, say, "test")
    known = {text.text for text in texts.texts}
    seen = sum(text.text in known for text in test.texts)
    if seen:
        say(f"note: {seen:,} of the {len(test.texts):,} test texts are also trained on, which inflates the scores")
    test.numbers(classes)  # raises an error for unknown classes before training
    set_seed(settings.seed)
    classifier = load_classifier(settings.model, settings.recurrence, classes)
    model = classifier.model
    _set_language_weight(classifier, settings.language_weight)
    held_out = None if settings.test is None else test.checksum()
    settings = recorded(settings, model, given.checksum(), held_out)
    earlier = earlier_result(settings, say)
    if earlier is not None:
        return earlier
    tokens = classifier.tokens([text.text for text in texts.texts])
    begin_run(settings)
    parameters = count_parameters(model)
    say(
        f"{settings.model}: {parameters['base']:,} parameters, {parameters['added']:,} added by "
        f"{model.recurrence.mechanism!r}; {len(tokens):,} texts, {windows_per_text(model, tokens):.1f} windows of "
        f"{model.recurrence.window} tokens each"
    )
    if settings.freeze_base:
        for name, parameter in model.base.base_model.named_parameters():
            parameter.requires_grad_(name.startswith("pooler."))  # a pooler belongs to the new head
    labels = texts.numbers(classifier.classes).tolist()
    examples = [{"input_ids": ids, "labels": label} for ids, label in zip(tokens, labels, strict=True)]
    collate = partial(collate_texts, pad_token_id=classifier.tokenizer.pad_token_id)

    def fit() -> TrainOutcome:
        total, tokenizer = sum(map(len, tokens)), classifier.tokenizer
        return train_examples(model, examples, collate, settings, total, tokenizer, group_by_length=True)

    def scores() -> dict[str, Any]:
        bf16 = uses_bf16(settings.precision)
        found, _ = score_texts(classifier, test, settings.batch, bf16)
        return {"test": {**found, "data": "a tenth, held out" if settings.test is None else settings.test}}

    counts = {
        "trained_on": texts.counts,
        "tested_on": test.counts,
        "tested_and_trained_on": seen,
        "empty": len(given.empty),
    }
    facts = {"classes": classifier.classes, "texts": counts}
    return complete_run("classify-train", settings, model, classifier.tokenizer, say, started, fit, scores, **facts)


def classify_evaluate(
    names: Sequence[str],
    data: str,
    say: Say,
    device: torch.device,
    text_field: str = "text",
    label_field: str = "label",
    batch: int = 8,
) -> dict[str, Any]:
    """Score trained classifiers on the same texts, and compare each with the first."""
    started = time.time()
    given = load_labelled(data, text_field, label_field, "test")
    say(f"{data}: {given.summary()}")
    rows: list[dict[str, Any]] = []
    right: list[np.ndarray] = []
    for name in names:
        classifier = load_classifier(name)
        classifier.model.to(device)
        found, hits = score_texts(classifier, given, batch, device.type == "cuda" and uses_bf16("auto"))
        memory = memory_cost(classifier.model)._asdict()
        rows.append({"model": name, "mechanism": classifier.model.recurrence.mechanism, "memory": memory, **found})
        right.append(hits)
    config = {"models": list(names), "data": data, "text_field": text_field, "label_field": label_field}
    return {
        "kind": "classify-evaluation",
        "rows": rows,
        "gains": [_gain(names[0], right[0], name, hits) for name, hits in zip(names[1:], right[1:], strict=True)],
        "provenance": provenance(config, data_checksum=given.checksum(), started=started),
    }


def classify_predict(
    name: str, data: str, out: Path, say: Say, device: torch.device, text_field: str = "text", batch: int = 8
) -> int:
    """Write the class and the probabilities of each text to a .csv or .jsonl file; returns the number of texts."""
    check_overwrites_nothing(out, data, name, content=b"" if out.suffix == ".csv" else b"{")
    if out.suffix not in PREDICTION_FILES:
        raise UserError(f"Predictions are written as {' or '.join(PREDICTION_FILES)}: got {str(out)!r}.")
    given = load_labelled(data, text_field, None, "test")
    say(f"{data}: {given.summary()}")
    classifier = load_classifier(name)
    classifier.model.to(device)
    tokens = classifier.tokens([text.text for text in given.texts])
    bf16 = device.type == "cuda" and uses_bf16("auto")
    with progress_bar(name, len(tokens), "texts") as advance:
        logs = class_log_probabilities(classifier, tokens, batch, bf16, advance)
    write_predictions(given, classifier.classes, np.exp(logs), out)
    return len(tokens)


def load_classifier(
    name: str, recurrence: dict[str, Any] | None = None, classes: Sequence[str] | None = None
) -> Classifier:
    """A trained classifier, or, given `classes`, one to train for these."""
    changes: dict[str, Any] = {}
    if classes is not None:
        changes = {
            "id2label": dict(enumerate(classes)),
            "label2id": {label: number for number, label in enumerate(classes)},
            "problem_type": "single_label_classification",
            # A head for another number of classes is replaced by a new one.
            "ignore_mismatched_sizes": _has_other_head(name, len(classes)),
        }
    model, tokenizer = load_task_model(
        name, RecurrentForSequenceClassification, recurrence, trained_head=classes is None, **changes
    )
    found = Classifier(name, model, tokenizer)
    if classes is not None and set(found.classes) != set(classes):
        raise UserError(
            f"{name!r} has the classes {shortened(found.classes)}, but the texts have {shortened(classes)}: start from "
            "its base model, or use texts of its classes."
        )
    if len(found.classes) < 2:
        raise UserError(f"{name!r} has one output and no classes: use a model that was trained as a classifier.")
    if not model.family.causal and model.recurrence.overlap:
        raise UserError(
            f"`overlap` is {model.recurrence.overlap}, but windows of an encoder begin with a token of their own and "
            "cannot overlap: set it to 0."
        )
    _set_padding(found)
    return found


def _has_other_head(name: str, classes: int) -> bool:
    """Whether a model is a classifier with another number of classes."""
    try:
        config = AutoConfig.from_pretrained(resolve_name(name)[0], trust_remote_code=trusts_remote_code())
    except Exception:  # a config may make transformers raise anything; loading the model reports the error
        return False
    made = (config.architectures or [""])[0]
    return made.endswith("ForSequenceClassification") and config.num_labels != classes


def _set_padding(classifier: Classifier) -> None:
    """Decoders often have no padding token: use the end of text, since padding is masked."""
    config, tokenizer = classifier.model.config, classifier.tokenizer
    if tokenizer.pad_token_id is None:
        known = config.pad_token_id if config.pad_token_id is not None else tokenizer.eos_token_id
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(known or 0)
    if config.pad_token_id is None:
        for part in (config, classifier.model.base.config):
            part.pad_token_id = tokenizer.pad_token_id


def _set_language_weight(classifier: Classifier, weight: float) -> None:
    if classifier.model.family.causal:
        classifier.model.config.language_weight = weight
    elif weight:
        raise UserError(
            f"`language_weight` is {weight:g}, but {classifier.name!r} is an encoder, which sees the next token: "
            "leave it out, or use a decoder."
        )


def read_labelled(source: str, settings: ClassifySettings, say: Say, split: str = "train") -> LabelledTexts:
    """Texts with their classes; reports how many."""
    found = load_labelled(source, settings.text_field, settings.label_field, split)
    say(f"{source}: {found.summary()}")
    return found


@torch.no_grad()
def class_log_probabilities(
    classifier: Classifier,
    tokens: Sequence[np.ndarray],
    batch: int = 8,
    bf16: bool = False,
    on_batch: Callable[[int], None] = lambda texts: None,
) -> np.ndarray:
    """(texts, classes): the log-probability of each class; texts of similar length form a batch."""
    model, pad = classifier.model, classifier.tokenizer.pad_token_id
    was_training = model.training
    model.eval()
    found = np.empty((len(tokens), len(classifier.classes)))
    # The longest first: too little memory then shows at once.
    order = sorted(range(len(tokens)), key=lambda index: -len(tokens[index]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        inputs = collate_texts([{"input_ids": tokens[row]} for row in rows], pad)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            logits = model(**{name: value.to(model.device) for name, value in inputs.items()}).logits
        found[rows] = logits.cpu().double().log_softmax(1).numpy()
        on_batch(len(rows))
    model.train(was_training)
    if not np.isfinite(found.max(1)).all():
        raise UserError(f"{classifier.name!r} gave scores that are not finite: its weights are damaged.")
    return found


def score_texts(
    classifier: Classifier, given: LabelledTexts, batch: int = 8, bf16: bool = False
) -> tuple[dict[str, Any], np.ndarray]:
    """The scores of a classifier, and which texts (texts,) it got right."""
    labels = given.numbers(classifier.classes)
    tokens = classifier.tokens([text.text for text in given.texts])
    with progress_bar(classifier.name, len(tokens), "texts") as advance:
        logs = class_log_probabilities(classifier, tokens, batch, bf16, advance)
    predicted = logs.argmax(1)
    right = (predicted == labels).astype(float)
    confusion = confusion_matrix(labels, predicted, labels=range(len(classifier.classes)))
    metrics = classification_metrics(logs, labels)
    return {
        "accuracy": metrics.pop("accuracy"),
        "accuracy_interval": share_interval(int(right.sum()), len(right)),
        **metrics,
        "loss": float(-logs[np.arange(len(labels)), labels].mean()),
        "texts": len(labels),
        "empty": len(given.empty),
        "windows_per_text": windows_per_text(classifier.model, tokens),
        "confusion": {"classes": classifier.classes, "true_by_predicted": confusion.tolist()},
        "checksum": given.checksum(),
    }, right


def windows_per_text(model: RecurrentForSequenceClassification, tokens: Sequence[np.ndarray]) -> float:
    recurrence = model.recurrence
    return sum(len(schedule(len(ids), recurrence.window, recurrence.overlap)) for ids in tokens) / len(tokens)


def _gain(first: str, before: np.ndarray, name: str, now: np.ndarray) -> dict[str, Any]:
    """The gain in accuracy over the first model on the same texts, with an interval over texts."""
    span = mean_interval(now - before)
    return {
        "model": name,
        "against": first,
        "accuracy_gain": float((now - before).mean()),
        "interval": span,
        "within_noise": span is None or span[0] <= 0 <= span[1],
    }


def write_predictions(given: LabelledTexts, classes: Sequence[str], shares: np.ndarray, out: Path) -> None:
    """Write one row for each text of the data, in its order; an empty text has no class."""
    found: dict[int, list[float] | None] = dict.fromkeys(given.empty)
    found |= {text.line: row.tolist() for text, row in zip(given.texts, shares, strict=True)}
    chosen = {line: None if row is None else classes[row.index(max(row))] for line, row in found.items()}
    written = io.StringIO(newline="")
    if out.suffix == ".csv":
        table = csv.writer(written, lineterminator="\n")
        table.writerow(["index", given.unit, "class", *(f"probability_{name}" for name in classes)])
        for index, line in enumerate(sorted(found)):  # lines do not count texts that have several
            table.writerow([index, line, chosen[line], *(found[line] or len(classes) * [""])])
    else:
        for index, line in enumerate(sorted(found)):
            row = found[line]
            values = {"class": chosen[line], "probabilities": row and dict(zip(classes, row, strict=True))}
            written.write(json.dumps({"index": index, given.unit: line, **values}, ensure_ascii=False) + "\n")
    write_whole(out, written.getvalue().encode())
