"""The runs of perplexity tables: pretrain a base, fine-tune a model, score it."""

import copy
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, set_seed

from recurrify import UserError, add_recurrence, load_model
from recurrify.data import pick_device, read_text
from recurrify.evaluate import evaluate_documents, full_flops_per_token, memory_cost, paper_flops_per_token
from recurrify.modeling import recurrence_config
from recurrify.results import load_result, provenance
from recurrify.train import TrainSettings, train_run, uses_bf16
from recurrify_papers.exchange import Exchange
from recurrify_papers.plan import MODEL
from recurrify_papers.pretrain.run import PretrainSettings, pretrain
from recurrify_papers.runner import RESULT_FILE, Say, minutes_left

OUT = MODEL.partition("/")[0]
"""Below the folder of a run: the folder of its training."""
ROWS = 24
"""Documents scored at once: few enough for a dozen processes on one GPU."""
Settings = dict[str, Any]


def pretrain_base(settings: Settings, folder: Path, say: Say) -> dict[str, Any] | None:
    """Pretrain a small base model."""
    result = pretrain(PretrainSettings(out=str(folder / OUT), max_minutes=minutes_left(), **settings), say)
    torch.compiler.reset()  # captured steps hold memory that later runs need
    return finished(result)


def train(settings: Settings, folder: Path, say: Say) -> dict[str, Any] | None:
    """Fine-tune as the settings say."""
    return trained(folder, train_run(train_settings(settings, folder), say, progress_label=folder.name))


def untrained(settings: Settings, folder: Path, say: Say) -> dict[str, Any]:
    """The base as it is with a new memory; scores load it again."""
    own = train_settings(settings, folder)
    memory = memory_cost(_untrained(own.to_dict())[0])._asdict()
    return {"kind": "untrained", "memory": memory, "provenance": provenance(own.to_dict(), seed=own.seed)}


def _untrained(config: Settings) -> tuple[Any, Any]:
    set_seed(config["seed"])
    return load_model(config["model"], config["recurrence"])


def trained(folder: Path, result: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a training that reached its end; its checkpoints are deleted."""
    if finished(result) is None:
        return None
    for checkpoint in (folder / OUT).glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    return result


def finished(result: dict[str, Any]) -> dict[str, Any] | None:
    """The result, or None if the time was up before the end."""
    if result["interrupted"]:
        raise KeyboardInterrupt  # so that no other run starts
    return result if result["finished"] else None


def train_settings(settings: Settings, folder: Path) -> TrainSettings:
    """The settings of a run as recurrify's own."""
    rate, training = settings["rate"], dict(settings["training"])
    recurrence = {**settings["recurrence"], "window": settings["window"]}
    if recurrence["mechanism"] != "xlnet":
        recurrence["overlap"] = settings["overlap"]
    recurrence["checkpoint"] = training.pop("checkpoint", False)
    if settings["added_rate"] != 1.0:
        training.setdefault("added_learning_rate", settings["added_rate"] * rate)
    return TrainSettings(
        model=settings["base"],
        data=settings["data"],
        out=str(folder / OUT),
        recurrence=recurrence,
        learning_rate=rate,
        seed=settings["seed"],
        max_minutes=minutes_left(),
        **training,
    )


def score(settings: Settings, folder: Path, say: Say) -> dict[str, Any]:
    """Score a trained model on one part of its text."""
    run = Path(settings["run"])
    config = load_result(run / RESULT_FILE)["provenance"]["config"]
    model, tokenizer = trained_model(run)
    model = model.to(pick_device())
    half = model.device.type == "cuda" and uses_bf16(config["precision"])
    tokens, checksum = read_text(
        config["data"], settings["split"], tokenizer, say, config["text_field"], settings["tokens"]
    )
    overlap = settings["overlap"]
    if config["recurrence"]["mechanism"] == "xlnet":
        from recurrify_papers.thesis.xlnet_scoring import score_xlnet

        found = score_xlnet(model, tokens, window=model.window, memory=model.memory, rows=ROWS, bf16=half)
        costs = dict.fromkeys(("flops_per_token", "full_flops_per_token"))
    else:
        found = evaluate_documents(
            model,
            tokens,
            overlap=overlap,
            rows=ROWS,
            bf16=half,
            change_state=Exchange() if settings["exchanged"] else None,
        )
        costs = {
            "flops_per_token": paper_flops_per_token(model, overlap=overlap),
            "full_flops_per_token": full_flops_per_token(model, overlap=overlap),
        }
    say(f"{folder.name}: perplexity {found.perplexity_per_word:,.2f} per word")
    settings = {**settings, "run": run.name}
    origin = provenance(settings, seed=config["seed"], data_checksum=checksum)
    loss = found.total_nll / int(found.tokens.sum())
    return {"kind": "score", **settings, **costs, "loss": loss, "evaluation": found.to_dict(), "provenance": origin}


def trained_model(run: Path) -> tuple[Any, Any]:
    """The model that a run saved, and its tokenizer."""
    result = load_result(run / RESULT_FILE)
    config = result["provenance"]["config"]
    if result["kind"] == "untrained":
        return _untrained(config)
    if not (run / MODEL).is_dir():
        raise UserError(f"The model of {str(run)!r} is gone: delete the folder to train it again.")
    if config["recurrence"]["mechanism"] == "xlnet":
        from recurrify_papers.thesis.xlnet_run import load_xlnet

        return load_xlnet(str(run / MODEL))
    return load_model(str(run / MODEL))


def matched_overlap(settings: Settings, folder: Path, say: Say) -> dict[str, Any]:
    """The largest overlap at which plain windows cost no more than a memory, all FLOPs counted; then their scores.

    Shapes decide, so nothing is trained for it.
    """
    base, window = _base(settings["base"]), settings["window"]
    memory = recurrence_config({**settings["recurrence"], "window": settings["memory_window"]})
    most = full_flops_per_token(add_recurrence(copy.deepcopy(base), memory))
    affordable = (overlap for overlap in range(window) if full_flops_per_token(base, window, overlap) <= most)
    overlap = max(affordable, default=0)
    found: dict[str, Any] = {"overlap": overlap, "scores": {}}
    for split, tokens in settings["splits"].items() if overlap else ():
        own = {"run": settings["run"], "split": split, "overlap": overlap, "tokens": tokens, "exchanged": False}
        found["scores"][split] = score(own, folder, say)
    return found


@cache
def _base(name: str) -> PreTrainedModel:
    base: PreTrainedModel = load_model(name)[0].base
    return base
