"""XLNet as a baseline: trained on the same text, tokens and schedule as a recurrent model."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, set_seed

from recurrify import load_model
from recurrify.data import TrainingSequences, read_text
from recurrify.results import provenance
from recurrify.train import TrainSettings, train, uses_bf16
from recurrify_papers.data.tokenizers import load_tokenizer
from recurrify_papers.finetune import train_settings, trained
from recurrify_papers.runner import Say
from recurrify_papers.thesis.xlnet import WindowedXLNet, xlnet_config
from recurrify_papers.thesis.xlnet_scoring import score_xlnet


def train_xlnet(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any] | None:
    """Train XLNet; settings are those of any fine-tuning."""
    own = train_settings(settings, folder)
    return trained(folder, xlnet_run(own, say, folder.name))


def xlnet_run(settings: TrainSettings, say: Say, progress_label: str = "") -> dict[str, Any]:
    """Train XLNet and leave its model in `settings.out`; resumes from the newest checkpoint there.

    `settings.model` is a pretrained XLNet, or any other causal model: then an XLNet of the same width, depth and
    tokenizer is trained from scratch.
    """
    out, started = Path(settings.out), time.time()
    set_seed(settings.seed)
    model, tokenizer = new_xlnet(settings.model, settings.recurrence["window"], settings.recurrence["memory"])
    model.checkpoint = True  # XLNet keeps its attention weights, which would fill a GPU
    texts, checksum = read_text(settings.data, "train", tokenizer, say, settings.text_field)
    valid, _ = read_text(settings.data, "valid", tokenizer, say, settings.text_field, settings.valid_tokens)
    own = {**settings.recurrence, "attention": model.config.attn_type, "checkpoint": True}
    settings = replace(settings, recurrence=own, data_checksum=checksum)
    say(
        f"XLNet, {model.num_parameters():,} parameters, attention {model.config.attn_type!r}; windows of "
        f"{model.window}, memory {model.memory}, {settings.windows} windows in a sequence"
    )

    def validate(model: Any, advance: Callable[[int], None]) -> dict[str, float]:
        rows, half = max(8, settings.batch), uses_bf16(settings.precision)
        found = score_xlnet(
            model, valid, window=model.window, memory=model.memory, rows=rows, bf16=half, progress=advance
        )
        loss = found.total_nll / int(found.tokens.sum())
        return {"loss": loss, "perplexity_per_word": found.perplexity_per_word}

    sequences = TrainingSequences(texts, window=model.window, windows=settings.windows)
    eager = replace(settings, compile="off")  # compiled windows are for recurrent models
    outcome = train(model, sequences, eager, validate, tokenizer, progress_label=progress_label)
    if outcome.finished:
        model.save_pretrained(out / "model")
        tokenizer.save_pretrained(out / "model")
    return {
        "kind": "train",
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "parameters": {"base": model.num_parameters(), "added": 0},
        "history": outcome.history,
        "provenance": provenance(settings.to_dict(), seed=settings.seed, data_checksum=checksum, started=started),
    }


def new_xlnet(name: str, window: int, memory: int) -> tuple[WindowedXLNet, Any]:
    """The pretrained XLNet of that name, or a new one in the shape of another model; and the tokenizer."""
    if is_xlnet(name):
        model, tokenizer = load_xlnet(name)
        model.set_windows(window=window, memory=memory)
        return model, tokenizer
    like, tokenizer = load_model(name, {"mechanism": "none"})
    return WindowedXLNet(xlnet_config(like.base.config, window=window, memory=memory)), tokenizer


def load_xlnet(name: str) -> tuple[WindowedXLNet, Any]:
    """A trained XLNet and its tokenizer, by the hub's name or a folder."""
    return WindowedXLNet.from_pretrained(name, dtype=torch.float32), load_tokenizer(name)


def is_xlnet(name: str) -> bool:
    """Whether a name or folder is that of an XLNet."""
    if name.startswith("shipped:") or name.endswith(".gguf"):
        return False
    try:
        return bool(AutoConfig.from_pretrained(name).model_type == "xlnet")
    except (OSError, ValueError):
        return False  # loading it as any other model reports what is wrong
