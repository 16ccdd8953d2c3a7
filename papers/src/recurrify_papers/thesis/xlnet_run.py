"""XLNet as a baseline: trained on the same text, tokens and schedule as a recurrent model."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, set_seed

from recurrify import load_model
from recurrify.data import TrainingSequences, load_tokenizer, read_text
from recurrify.results import provenance
from recurrify.train import TrainSettings, train, uses_bf16
from recurrify_papers.finetune import train_settings, trained
from recurrify_papers.runner import Say
from recurrify_papers.thesis.xlnet import WindowedXLNet, check_windows, xlnet_config
from recurrify_papers.thesis.xlnet_scoring import score_xlnet


@dataclass(frozen=True, kw_only=True)
class XLNetMemory:
    """The settings of XLNet's windows."""

    window: int = 300
    memory: int = 300
    """Tokens before a window that its layers remember; 0 is none."""
    attention: str = "uni"
    """Of a model from scratch: uni predicts by the content stream, bi by the query stream. A pretrained model has its
    own."""
    checkpoint: bool = True
    """Recompute each window in the backward pass: XLNet keeps its attention weights, which would fill a GPU."""

    def __post_init__(self) -> None:
        check_windows(self.window, self.memory)


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
    wanted = {name: value for name, value in settings.recurrence.items() if name != "mechanism"}
    memory = XLNetMemory(**{**wanted, "checkpoint": True})
    set_seed(settings.seed)
    model, tokenizer = new_xlnet(settings.model, memory)
    texts, checksum = read_text(settings.data, "train", tokenizer, say, settings.text_field)
    valid, _ = read_text(settings.data, "valid", tokenizer, say, settings.text_field, settings.valid_tokens)
    own = asdict(replace(memory, attention=model.config.attn_type))
    settings = replace(settings, recurrence={"mechanism": "xlnet", **own}, data_checksum=checksum)
    say(
        f"XLNet, {model.num_parameters():,} parameters, attention {model.config.attn_type!r}; windows of "
        f"{memory.window}, memory {memory.memory}, {settings.windows} windows in a sequence"
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


def new_xlnet(name: str, memory: XLNetMemory) -> tuple[WindowedXLNet, Any]:
    """The pretrained XLNet of that name, or a new one in the shape of another model; and the tokenizer."""
    if is_xlnet(name):
        return load_xlnet(name, memory)
    like, tokenizer = load_model(name, {"mechanism": "none"})
    config = xlnet_config(like.base.config, window=memory.window, memory=memory.memory, attention=memory.attention)
    model = WindowedXLNet(config)
    model.set_windows(window=memory.window, memory=memory.memory, checkpoint=memory.checkpoint)
    return model, tokenizer


def load_xlnet(name: str, memory: XLNetMemory) -> tuple[WindowedXLNet, Any]:
    """A trained XLNet and its tokenizer, by the hub's name or a folder."""
    model = WindowedXLNet.from_pretrained(name, dtype=torch.float32)
    model.set_windows(window=memory.window, memory=memory.memory, checkpoint=memory.checkpoint)
    return model, load_tokenizer(name)


def is_xlnet(name: str) -> bool:
    """Whether a name or folder is that of an XLNet."""
    if name.startswith("shipped:") or name.endswith(".gguf"):
        return False
    try:
        return bool(AutoConfig.from_pretrained(name).model_type == "xlnet")
    except (OSError, ValueError):
        return False  # loading it as any other model reports what is wrong
