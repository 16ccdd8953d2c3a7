"""Classification of texts as whole jobs: from names to a trained model, its scores and its predictions."""

import csv
import io
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, set_seed

from recurrify.console import is_first, progress_bar
from recurrify.data.labelled import LabelledTexts, hold_out, joined_checksum, load_labelled, shortened
from recurrify.data.labelled_windows import collate_texts, tokenize_texts
from recurrify.data.texts import Say
from recurrify.errors import UserError
from recurrify.evaluate.answers import mean_interval
from recurrify.evaluate.classification import classification_metrics, share_interval
from recurrify.evaluate.flops import memory_cost
from recurrify.modeling.loading import resolve_name
from recurrify.modeling.task_heads import RecurrentForSequenceClassification
from recurrify.modeling.task_loading import load_task_model
from recurrify.results import check_overwrites_nothing, provenance, save_result, write_whole
from recurrify.train.classifying import ClassifySettings, train_classifier
from recurrify.train.finetuning import count_parameters, explain_full_disk
from recurrify.train.resuming import RESULT_FILE, earlier_result
from recurrify.train.running import uses_bf16
from recurrify.train.task import task_arguments
from recurrify.windows import schedule

PREDICTION_FILES = (".csv", ".jsonl")


@dataclass(frozen=True)
class Classifier:
    """A model, its tokenizer and what they are called."""

    name: str
    model: RecurrentForSequenceClassification
    tokenizer: Any

    @property
    def classes(self) -> list[str]:
        named: dict[int, str] = self.model.config.id2label
        return [str(named[number]) for number in sorted(named)]

    def tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The texts as this model reads them: a decoder in one stream, an encoder in windows that begin alike.

        Without a memory a decoder knows of its last window alone: it gets a full one, a text's last tokens, and not
        what the windows before happen to leave.
        """
        window, causal = self.model.recurrence.window, self.model.family.causal
        found = tokenize_texts(texts, self.tokenizer, None if causal else window)
        if causal and self.model.mechanism is None:
            found = [ids[-window:] for ids in found]
        known = int(self.model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
        largest = max(int(ids.max()) for ids in found)
        if largest >= known:
            raise UserError(
                f"The tokenizer of {self.name!r} gives token {largest}, but the model knows only 0 to {known - 1}: "
                "they do not belong together."
            )
        return found


def classify_train(
    settings: ClassifySettings, say: Say, show_progress: bool = True, progress_label: str = ""
) -> dict[str, Any]:
    """Train as the settings say, then score the test texts; model and result land in `settings.out`."""
    started = time.time()
    given = read_labelled(settings.data, settings, say)
    classes = list(given.counts)
    if len(classes) < 2:
        raise UserError(
            f"All texts of {settings.data} are of the class {classes[0]!r}: there is nothing to tell apart."
        )
    if settings.test is None:
        texts, test = hold_out(given, settings.seed)
        say(f"held out to test by: {test.told()}")
    else:
        texts, test = given, read_labelled(settings.test, settings, say, "test")
    known = {text.text for text in texts.texts}
    seen = sum(text.text in known for text in test.texts)
    if seen:
        say(
            f"note: {seen:,} of the {len(test.texts):,} texts to test by are also trained on, which flatters the scores"
        )
    test.numbers(classes)  # refuses what the model will not know, before anything is trained
    set_seed(settings.seed)
    classifier = load_classifier(settings.model, settings.recurrence, classes)
    model = classifier.model
    _set_language_weight(classifier, settings.language_weight)
    both = given.checksum() if settings.test is None else joined_checksum(given, test)
    settings = replace(settings, recurrence=model.recurrence.to_dict(), data_checksum=both)
    earlier = earlier_result(settings, say)
    if earlier is not None:
        return earlier
    tokens = classifier.tokens([text.text for text in texts.texts])
    settings.write()
    parameters = count_parameters(model)
    say(
        f"{settings.model}: {parameters['base']:,} parameters, {parameters['added']:,} added by "
        f"{model.recurrence.mechanism!r}; {len(tokens):,} texts, {windows_per_text(model, tokens):.1f} windows of "
        f"{model.recurrence.window} tokens each"
    )
    _tell_warm_up(settings, len(tokens), say)
    labels = texts.numbers(classifier.classes)
    try:
        outcome = train_classifier(model, tokens, labels, settings, classifier.tokenizer, show_progress, progress_label)
    except (OSError, RuntimeError) as error:
        raise explain_full_disk(error, settings.out) from error
    result: dict[str, Any] = {
        "kind": "classify-train",
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "parameters": parameters,
        "memory": memory_cost(model)._asdict(),
        "classes": classifier.classes,
        "texts": {
            "trained_on": texts.counts,
            "tested_on": test.counts,
            "tested_and_trained_on": seen,
            "empty": len(given.empty),
        },
        "history": outcome.history,
    }
    if not outcome.finished:
        say(f"stopped and saved after {outcome.steps:,} steps: run the same command again to go on")
        return result
    bf16 = uses_bf16(settings.precision)
    result["test"], _ = score_texts(classifier, test, settings.batch, bf16, show_progress and is_first())
    result["test"]["data"] = "a tenth, held out" if settings.test is None else settings.test
    result["provenance"] = provenance(
        settings.to_dict(), seed=settings.seed, data_checksum=settings.data_checksum, started=started
    )
    _save(classifier, result, Path(settings.out))
    return result


def classify_evaluate(
    names: Sequence[str],
    data: str,
    say: Say,
    device: torch.device,
    text_field: str = "text",
    label_field: str = "label",
    batch: int = 8,
) -> dict[str, Any]:
    """Trained classifiers scored on the same texts, and each held against the first."""
    started = time.time()
    given = load_labelled(data, text_field, label_field, "test")
    say(f"{data}: {given.told()}")
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
    """Write a classifier's class and probabilities of each text to a .csv or .jsonl file; gives how many texts."""
    check_overwrites_nothing(out, data, name, content=b"" if out.suffix == ".csv" else b"{")
    if out.suffix not in PREDICTION_FILES:
        raise UserError(f"Predictions are written as {' or '.join(PREDICTION_FILES)}: got {str(out)!r}.")
    given = load_labelled(data, text_field, None, "test")
    say(f"{data}: {given.told()}")
    classifier = load_classifier(name)
    classifier.model.to(device)
    tokens = classifier.tokens([text.text for text in given.texts])
    bf16 = device.type == "cuda" and uses_bf16("auto")
    with progress_bar(name, len(tokens)) as advance:
        logs = class_log_probabilities(classifier, tokens, batch, bf16, advance)
    write_predictions(given, classifier.classes, np.exp(logs), out)
    return len(tokens)


def load_classifier(
    name: str, recurrence: dict[str, Any] | None = None, classes: Sequence[str] | None = None
) -> Classifier:
    """A classifier with its own classes, or, given `classes`, one to train to tell them apart."""
    changes: dict[str, Any] = {}
    if classes is not None:
        changes = {
            "id2label": dict(enumerate(classes)),
            "label2id": {label: number for number, label in enumerate(classes)},
            "problem_type": "single_label_classification",
            # A head for other classes than these makes room for a new one.
            "ignore_mismatched_sizes": _has_other_head(name, len(classes)),
        }
    model, tokenizer = load_task_model(
        name, RecurrentForSequenceClassification, recurrence, trained_head=classes is None, **changes
    )
    found = Classifier(name, model, tokenizer)
    if classes is not None and set(found.classes) != set(classes):
        raise UserError(
            f"{name!r} tells {shortened(found.classes)} apart, but the texts are of {shortened(classes)}: start from "
            "its base model, or give texts of its classes."
        )
    if len(found.classes) < 2:
        raise UserError(f"{name!r} has one output and no classes: give a model that was trained to tell classes apart.")
    if not model.family.causal and model.recurrence.overlap:
        raise UserError(
            f"`overlap` is {model.recurrence.overlap}, but each window of an encoder begins with a token of its own, "
            "so they cannot overlap: set it to 0."
        )
    _set_padding(found)
    return found


def _has_other_head(name: str, classes: int) -> bool:
    """Whether a model is a classifier already, of another number of classes."""
    try:
        config = AutoConfig.from_pretrained(resolve_name(name)[0])
    except (OSError, ValueError):  # whatever is wrong with it, loading it will tell
        return False
    made = (config.architectures or [""])[0]
    return made.endswith("ForSequenceClassification") and config.num_labels != classes


def _set_padding(classifier: Classifier) -> None:
    """Decoders are often published without a padding token: the end of text serves, since nothing looks at padding."""
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
            f"`language_weight` is {weight:g}, but {classifier.name!r} is an encoder, which sees the next token while "
            "predicting it: leave it out, or take a decoder."
        )


def read_labelled(source: str, settings: ClassifySettings, say: Say, split: str = "train") -> LabelledTexts:
    found = load_labelled(source, settings.text_field, settings.label_field, split)
    say(f"{source}: {found.told()}")
    return found


def _tell_warm_up(settings: ClassifySettings, texts: int, say: Say) -> None:
    steps = task_arguments(settings, texts).max_steps
    if settings.warmup_steps >= steps:
        say(
            f"note: the warm-up of {settings.warmup_steps} steps is not over when the run ends after {steps}: "
            "shorten it with --warmup-steps"
        )


def _save(classifier: Classifier, result: dict[str, Any], out: Path) -> None:
    if not is_first():
        return
    try:
        classifier.model.save_pretrained(out / "model")
        classifier.tokenizer.save_pretrained(out / "model")
    except OSError as error:
        raise explain_full_disk(error, str(out)) from error
    save_result(out / RESULT_FILE, result)


@torch.no_grad()
def class_log_probabilities(
    classifier: Classifier,
    tokens: Sequence[np.ndarray],
    batch: int = 8,
    bf16: bool = False,
    on_batch: Callable[[int], None] | None = None,
) -> np.ndarray:
    """(texts, classes): the logarithm of each class's probability; texts of similar length are read side by side."""
    model, pad = classifier.model, classifier.tokenizer.pad_token_id
    was_training = model.training
    model.eval()
    found = np.empty((len(tokens), len(classifier.classes)))
    # The longest first: if memory does not suffice, that shows at once.
    order = sorted(range(len(tokens)), key=lambda index: -len(tokens[index]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        inputs = collate_texts([{"input_ids": tokens[row]} for row in rows], pad)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            logits = model(**{name: value.to(model.device) for name, value in inputs.items()}).logits
        found[rows] = logits.cpu().double().log_softmax(1).numpy()
        if on_batch is not None:
            on_batch(len(rows))
    model.train(was_training)
    if not np.isfinite(found.max(1)).all():
        raise UserError(f"{classifier.name!r} gave scores that are not finite: its weights are of no use.")
    return found


def score_texts(
    classifier: Classifier, given: LabelledTexts, batch: int = 8, bf16: bool = False, show_progress: bool = True
) -> tuple[dict[str, Any], np.ndarray]:
    """How good a classifier is on these texts, and which of them (texts,) it got right."""
    labels = given.numbers(classifier.classes)
    tokens = classifier.tokens([text.text for text in given.texts])
    with progress_bar(classifier.name, len(tokens)) if show_progress else nullcontext() as advance:
        logs = class_log_probabilities(classifier, tokens, batch, bf16, advance)
    predicted = logs.argmax(1)
    right = (predicted == labels).astype(float)
    confusion = np.zeros((len(classifier.classes),) * 2, dtype=int)
    np.add.at(confusion, (labels, predicted), 1)
    metrics = classification_metrics(logs, labels)
    return {
        "accuracy": metrics.pop("accuracy"),
        "accuracy_interval": share_interval(int(right.sum()), len(right)),
        **metrics,
        "loss": float(-logs[np.arange(len(labels)), labels].mean()),
        "texts": len(labels),
        "empty": len(given.empty),
        "windows_per_text": windows_per_text(classifier.model, tokens),
        "by_class": {
            name: {"texts": int(true), "predicted": int(said), "right": int(hits)}
            for name, true, said, hits in zip(
                classifier.classes, confusion.sum(1), confusion.sum(0), confusion.diagonal(), strict=True
            )
        },
        "confusion": {"classes": classifier.classes, "true_by_predicted": confusion.tolist()},
        "checksum": given.checksum(),
    }, right


def windows_per_text(model: RecurrentForSequenceClassification, tokens: Sequence[np.ndarray]) -> float:
    recurrence = model.recurrence
    return sum(len(schedule(len(ids), recurrence.window, recurrence.overlap)) for ids in tokens) / len(tokens)


def _gain(first: str, before: np.ndarray, name: str, now: np.ndarray) -> dict[str, Any]:
    """How much more accurate than the first model on the same texts, with an interval over texts."""
    span = mean_interval(now - before)
    return {
        "model": name,
        "against": first,
        "accuracy_gain": float((now - before).mean()),
        "interval": span,
        "within_noise": span is None or span[0] <= 0 <= span[1],
    }


def write_predictions(given: LabelledTexts, classes: Sequence[str], shares: np.ndarray, out: Path) -> None:
    """One row for each text of the data, in its order; an empty text has no class."""
    found: dict[int, list[float] | None] = dict.fromkeys(given.empty)
    found |= {text.line: row.tolist() for text, row in zip(given.texts, shares, strict=True)}
    said = {line: None if row is None else classes[row.index(max(row))] for line, row in found.items()}
    written = io.StringIO(newline="")
    if out.suffix == ".csv":
        table = csv.writer(written, lineterminator="\n")
        table.writerow(["index", given.unit, "class", *(f"probability_{name}" for name in classes)])
        for index, line in enumerate(sorted(found)):  # lines do not count texts that have several
            table.writerow([index, line, said[line], *(found[line] or len(classes) * [""])])
    else:
        for index, line in enumerate(sorted(found)):
            row = found[line]
            told = {"class": said[line], "probabilities": row and dict(zip(classes, row, strict=True))}
            written.write(json.dumps({"index": index, given.unit: line, **told}, ensure_ascii=False) + "\n")
    write_whole(out, written.getvalue().encode())
