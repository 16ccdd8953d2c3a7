"""XLNet as a baseline, as a whole job: the same text, tokens and schedule as a recurrent model's run."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, set_seed

from recurrify.console import is_first
from recurrify.data.sequences import TrainingSequences
from recurrify.data.texts import Say, read_text
from recurrify.data.tokenizers import load_tokenizer
from recurrify.data.tokens import TokenizedDocument
from recurrify.errors import UserError
from recurrify.modeling.loading import load_model
from recurrify.modeling.saving import load_base
from recurrify.results import provenance, save_result
from recurrify.train.counting import seconds_trained
from recurrify.train.finetuning import check_vocabulary, explain_full_disk
from recurrify.train.resuming import RESULT_FILE, earlier_result
from recurrify.train.running import uses_bf16, uses_compile
from recurrify.train.settings import TrainSettings
from recurrify.train.trainer import train
from recurrify_papers.thesis.xlnet import WindowedXLNet, check_windows, xlnet_config
from recurrify_papers.thesis.xlnet_evaluation import score_xlnet

MECHANISM = "xlnet"


@dataclass(frozen=True, kw_only=True)
class XLNetMemory:
    """What stands in a run's settings where a recurrent model has its recurrence."""

    window: int = 300
    """Tokens of a window."""
    memory: int = 300
    """Tokens before a window that its layers remember; 0 is none."""
    attention: str = "uni"
    """Of a model from scratch: uni, which predicts by the content stream, or bi, by the query stream. A pretrained
    model has its own."""
    checkpoint: bool = True
    """Recompute each window in the backward pass instead of keeping it."""

    def __post_init__(self) -> None:
        check_windows(self.window, self.memory)

    def to_dict(self) -> dict[str, Any]:
        return {"mechanism": MECHANISM, **asdict(self)}

    @classmethod
    def of(cls, settings: TrainSettings) -> "XLNetMemory":
        values = dict(settings.recurrence)
        if values.pop("mechanism", None) != MECHANISM:
            raise UserError(
                f"An XLNet run needs the mechanism {MECHANISM!r}: got {settings.recurrence.get('mechanism')!r}."
            )
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise UserError(f"XLNet has no setting {', '.join(map(repr, unknown))}: its settings are {known}.")
        return cls(**values)


def xlnet_run(
    settings: TrainSettings, say: Say, show_progress: bool = True, progress_label: str = ""
) -> dict[str, Any]:
    """Train XLNet as the settings say and leave model and result in `settings.out`; goes on with a run begun there.

    `settings.model` is a pretrained XLNet, or any other causal model: then an XLNet of the same width, depth and
    tokenizer is trained from scratch. `settings.recurrence` is what `XLNetMemory.to_dict` gives.
    """
    out, started = Path(settings.out), time.time()
    memory = XLNetMemory.of(settings)
    set_seed(settings.seed)
    model, tokenizer = new_xlnet(settings.model, memory)
    texts, text_sum = read_text(settings.data, "train", tokenizer, say, settings.text_field)
    recurrence = replace(memory, attention=model.config.attn_type).to_dict()
    settings = replace(settings, recurrence=recurrence, data_checksum=text_sum)
    earlier = earlier_result(settings, say)
    if earlier is not None:
        return earlier
    split = "all" if settings.valid else "valid"
    valid_source = settings.valid or settings.data
    valid, _ = read_text(valid_source, split, tokenizer, say, settings.text_field, settings.valid_tokens)
    check_vocabulary(model, [*texts, *valid], settings.model)
    settings.write()
    say(
        f"XLNet, {model.num_parameters():,} parameters, attention {model.config.attn_type!r}; windows of "
        f"{memory.window}, memory {memory.memory}, {settings.windows} windows in a sequence"
    )
    try:
        outcome = _train(model, tokenizer, texts, valid, settings, show_progress, progress_label)
    except (OSError, RuntimeError) as error:
        raise explain_full_disk(error, settings.out) from error
    result = {
        "kind": "train",
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "training_seconds": seconds_trained(outcome.history),
        "parameters": {"base": model.num_parameters(), "added": 0},
        "history": outcome.history,
        "provenance": provenance(settings.to_dict(), seed=settings.seed, data_checksum=text_sum, started=started),
    }
    if not outcome.finished:
        say(f"stopped and saved after {outcome.tokens:,} tokens: run the same command again to go on")
    elif is_first():
        _leave(model, tokenizer, result, out)
    return result


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
    """A trained XLNet and its tokenizer, by the hub's name, a folder, or the folder of a run."""
    source = str(_model_folder(name))
    try:
        model = load_base(WindowedXLNet, source, dtype=torch.float32)
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"Could not load the model {name!r}: {(str(error).splitlines() or ['no reason'])[0]}"
        ) from error
    model.set_windows(window=memory.window, memory=memory.memory, checkpoint=memory.checkpoint)
    return model, load_tokenizer(source)


def is_xlnet(name: str) -> bool:
    if name.startswith("shipped:") or name.endswith(".gguf"):
        return False
    try:
        return AutoConfig.from_pretrained(str(_model_folder(name))).model_type == "xlnet"
    except (OSError, ValueError):
        return False  # loading it as any other model will tell what is wrong


def _model_folder(name: str) -> str | Path:
    inside = Path(name) / "model"
    return inside if (inside / "config.json").is_file() else name


def _train(
    model: WindowedXLNet,
    tokenizer: Any,
    texts: Sequence[TokenizedDocument],
    valid: Sequence[TokenizedDocument],
    settings: TrainSettings,
    show_progress: bool,
    progress_label: str,
) -> Any:
    sequences = TrainingSequences(texts, window=model.window, windows=settings.windows)
    half = uses_bf16(settings.precision)

    def validate(model: Any) -> dict[str, float]:
        rows = max(8, settings.batch)
        found = score_xlnet(model, valid, window=model.window, memory=model.memory, rows=rows, bf16=half)
        return {
            "loss": found.total_nll / int(found.tokens.sum()),
            "perplexity_per_word": found.perplexity_per_word,
        }

    if uses_compile(settings.compile):
        model.compile_windows()
    # `train` compiles the layers of recurrent models, which these are not.
    return train(model, sequences, replace(settings, compile="off"), validate, tokenizer, show_progress, progress_label)


def _leave(model: WindowedXLNet, tokenizer: Any, result: dict[str, Any], out: Path) -> None:
    try:
        model.save_pretrained(out / "model")
        tokenizer.save_pretrained(out / "model")
    except OSError as error:
        raise explain_full_disk(error, str(out)) from error
    save_result(out / RESULT_FILE, result)
