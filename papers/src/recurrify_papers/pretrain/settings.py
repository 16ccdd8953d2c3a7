"""Settings of a pretraining run."""

import math
from dataclasses import dataclass

from recurrify.errors import UserError
from recurrify.train.settings import TrainerSettings

OBJECTIVES = {"clm": "GPT-2", "mlm": "BERT", "span": "T5"}
"""Objectives and the architectures that learn by them."""


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(TrainerSettings):
    """The defaults are a small model that trains in minutes on one GPU."""

    data: list[str]
    """Sources of training text, pooled in this order."""
    objective: str = "clm"
    """clm: a GPT-2 predicts the next token; mlm: a BERT, masked tokens; span: a T5, spans that were cut out."""
    valid: str | None = None
    """Validation text; None: the validation splits of the training sources."""
    text_field: str = "text"
    """Field of JSON lines or of a data set that holds the text."""
    tokenizer: str | None = None
    """Folder or hub name of a tokenizer; None: trained on the text."""
    vocabulary: int = 16_384
    """Tokens of the tokenizer that is trained."""
    layers: int = 8
    """Layers; of a T5, in encoder and decoder each."""
    width: int = 512
    """Width of the hidden states."""
    heads: int = 8
    """Attention heads."""
    positions: int = 1024
    """Tokens of a sequence, and the longest window of the model."""
    epochs: float | None = None
    """Passes over the text; None: as many as `max_tokens` takes, or one."""
    max_tokens: int | None = None
    """Stop after about this many training tokens."""
    batch: int = 32
    """Sequences in a step, per device."""
    learning_rate: float = 1e-3
    """Peak learning rate; a cosine decays it to a tenth."""
    warmup_steps: int = 200
    """Steps of linear warm-up."""
    weight_decay: float = 0.1
    """Weight decay of matrices; biases and LayerNorms have none."""
    dropout: float = 0.0
    """Dropout."""
    valid_every: int = 20_000_000
    """Training tokens between validations, each with a checkpoint."""
    compile: str = "auto"
    """auto (on with CUDA), on or off."""

    def __post_init__(self) -> None:
        sizes = dict.fromkeys(("layers", "width", "heads", "valid_every"), 1)
        self.check({**sizes, "positions": 2}, ("epochs", "max_tokens"))
        self.check_choice("objective", *OBJECTIVES)
        self.check_choice("compile", "auto", "on", "off")
        if not self.data:
            raise UserError("`data` names no training text: give at least one source.")
        if self.width % self.heads:
            raise UserError(
                f"`heads` must divide `width`: got width={self.width}, heads={self.heads}; use "
                f"heads={math.gcd(self.heads, self.width)}."
            )
        if self.tokenizer is None:
            from recurrify.data import check_vocabulary_size  # imports tokenizers

            check_vocabulary_size(self.vocabulary, self.objective)
        if not 0 <= self.dropout < 1:
            raise UserError(f"`dropout` must be at least 0 and below 1: got {self.dropout}.")
