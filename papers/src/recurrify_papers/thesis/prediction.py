"""Accuracy, precision, recall, F1 and AUC-ROC of a trained model's next tokens."""

from pathlib import Path
from typing import Any

from recurrify.data import pick_device, read_text
from recurrify.results import provenance
from recurrify.train import uses_bf16
from recurrify_papers.finetune import trained_model
from recurrify_papers.runner import Say
from recurrify_papers.thesis.predictions import collect_predictions, prediction_metrics


def prediction_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Predict the first tokens of each test document."""
    model, tokenizer = trained_model(Path(settings["run"]))
    model = model.to(pick_device())
    documents, checksum = read_text(settings["data"], "test", tokenizer, say)
    half = model.device.type == "cuda" and uses_bf16("auto")
    most, classes = settings["tokens"], settings["classes"]
    found = collect_predictions(model, documents, tokens_per_document=most, classes=classes, rows=64, bf16=half)
    origin = provenance(settings, data_checksum=checksum)
    note = f"{len(found.targets):,} tokens"
    numbers = [
        {"metric": metric, "value": value, "split": "test", "note": note}
        for metric, value in prediction_metrics(found).items()
    ]
    return {"kind": "prediction", "numbers": numbers, "provenance": origin}
