"""Settings of a pretraining run."""

import math
from dataclasses import dataclass

from recurrify import UserError
from recurrify.settings import setting
from recurrify.train import TrainerSettings

OBJECTIVES = {"clm": "GPT-2", "mlm": "BERT", "span": "T5"}
"""Objectives and the architectures that learn by them."""
INPUT, MODEL, BUDGET, TRAINING = "Input and output", "Model", "Budget and validation", "Training"


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(TrainerSettings):
    """The defaults are a small model that trains in minutes on one GPU."""

    data: list[str] = setting(panel=INPUT, basic=True)  # noqa: RUF009
    """Sources of training text, pooled in this order."""
    objective: str = setting("clm", choices=tuple(OBJECTIVES), panel=MODEL, basic=True)
    """clm: a GPT-2 predicts the next token; mlm: a BERT, masked tokens; span: a T5, spans that were cut out."""
    valid: str | None = setting(None, panel=INPUT)
    """Validation text; None: the validation splits of the training sources."""
    text_field: str = setting("text", panel=INPUT)
    """Field of JSON lines or of a data set that holds the text."""
    tokenizer: str | None = setting(None, panel=MODEL)
    """Folder or hub name of a tokenizer; None: trained on the text."""
    vocabulary: int = setting(16_384, panel=MODEL, basic=True)
    """Tokens of the tokenizer that is trained."""
    layers: int = setting(8, at_least=1, panel=MODEL, basic=True)
    """Layers; of a T5, in encoder and decoder each."""
    width: int = setting(512, at_least=1, panel=MODEL, basic=True)
    """Width of the hidden states."""
    heads: int = setting(8, at_least=1, panel=MODEL, basic=True)
    """Attention heads."""
    positions: int = setting(1024, at_least=2, panel=MODEL, basic=True)
    """Tokens of a sequence, and the longest window of the model."""
    epochs: float | None = setting(None, positive=True, panel=BUDGET, basic=True)
    """Passes over the text; None: as many as `max_tokens` takes, or one."""
    max_tokens: int | None = setting(None, positive=True, panel=BUDGET, basic=True)
    """Stop after about this many training tokens."""
    batch: int = setting(32, at_least=1, panel=TRAINING, basic=True)
    """Sequences in a step, per device."""
    learning_rate: float = setting(1e-3, positive=True, panel=TRAINING, basic=True)
    """Peak learning rate; a cosine decays it to a tenth."""
    warmup_steps: int | None = setting(200, at_least=0, panel=TRAINING)
    """Steps of linear warm-up."""
    weight_decay: float = setting(0.1, at_least=0, panel=TRAINING)
    """Weight decay of matrices; biases and LayerNorms have none."""
    dropout: float = setting(0.0, at_least=0, panel=TRAINING)
    """Dropout."""
    valid_every: int = setting(20_000_000, at_least=1, panel=BUDGET)
    """Training tokens between validations, each with a checkpoint."""
    compile: str = setting("auto", choices=("auto", "on", "off"), panel=TRAINING)
    """auto (on with CUDA), on or off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data:
            raise UserError("`data` names no training text: give at least one source.")
        if self.width % self.heads:
            raise UserError(
                f"`heads` must divide `width`: got width={self.width}, heads={self.heads}; use "
                f"heads={math.gcd(self.heads, self.width)}."
            )
        if self.tokenizer is None:
            from recurrify_papers.data.tokenizers import check_vocabulary_size

            check_vocabulary_size(self.vocabulary, self.objective)
        if self.dropout >= 1:
            raise UserError(f"`dropout` must be below 1: got {self.dropout}.")
