"""The settings of every training run on Hugging Face's Trainer. Nothing here imports torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from recurrify.errors import UserError
from recurrify.records import BUDGET, RunRecord
from recurrify.settings import setting
from recurrify.train.memories import BEST, learns

SCHEDULES = ("constant_with_warmup", "linear", "cosine")
"""Learning-rate schedules."""
INPUT, MEMORY, TRAINING = "Input and output", "Memory", "Training"
WARMUP_STEPS, WARMUP_SHARE = 100, 0.1
"""Default warm-up: this many steps, or this share of a short run."""


def processes() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def shards() -> int:
    """Among how many processes `accelerate launch` divides the weights (FSDP); 1 if each has all of them."""
    return processes() if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" else 1


@dataclass(frozen=True, kw_only=True)
class TrainerSettings(RunRecord):
    """The settings that all runs on Hugging Face's Trainer share."""

    may_differ: ClassVar[tuple[str, ...]] = ("max_minutes", "out", "report_to")

    batch: int = setting(8, at_least=1, panel=TRAINING, basic=True)
    """Sequences per step and device."""
    accumulate: int = setting(1, at_least=1, panel=TRAINING)
    """Batches per weight update."""
    learning_rate: float = setting(5e-5, positive=True, panel=TRAINING, basic=True)
    """Learning rate."""
    weight_decay: float = setting(0.0, at_least=0, option=False)
    """Weight decay."""
    warmup_steps: int | None = setting(None, at_least=0, option=False)
    """Linear warm-up steps (default: 100, at most a tenth of the run)."""
    max_grad_norm: float = setting(1.0, at_least=0, option=False)
    """Gradient-norm clipping (0 = off)."""
    precision: str = setting("auto", choices=("auto", "bf16", "fp32"), panel=TRAINING)
    """auto (bf16 on GPUs that support it, else fp32), bf16 or fp32."""
    seed: int = setting(0, at_least=0, at_most=2**32 - 1, panel=TRAINING)
    """Random seed of shuffling, dropout and new weights."""
    report_to: str = setting("tensorboard", choices=("tensorboard", "wandb", "none"), panel=INPUT)
    """Where curves go: tensorboard, wandb or none."""
    data_checksum: str | None = setting(None, recorded=True, option=False)
    """SHA-256 of the training data."""
    held_out_checksum: str | None = setting(None, recorded=True, option=False)
    """SHA-256 of the validation or test data."""
    processes: int = setting(factory=processes, recorded=True, option=False)
    """Processes that train together."""

    @property
    def sequences_per_update(self) -> int:
        """In all processes together."""
        return self.batch * self.accumulate * self.processes

    def check_same_run(self, earlier: Self) -> None:
        """A run may resume on another number of processes, as long as its updates see as many sequences."""
        wanted = earlier.sequences_per_update
        if self.processes != earlier.processes and self.sequences_per_update != wanted and wanted % self.processes == 0:
            raise UserError(
                f"The run in {self.out!r} has {wanted} sequences in an update, here there would be "
                f"{self.sequences_per_update}: to resume it with {self.processes} process(es), --batch times "
                f"--accumulate must be {wanted // self.processes}."
            )
        if self.sequences_per_update == wanted:
            same = {name: getattr(self, name) for name in ("batch", "accumulate", "processes")}
            earlier = replace(earlier, **same)
        super().check_same_run(earlier)

    def warmup(self, steps: int) -> int:
        """The warm-up of a run of this many steps."""
        return self.warmup_steps if self.warmup_steps is not None else min(WARMUP_STEPS, int(WARMUP_SHARE * steps))


@dataclass(frozen=True, kw_only=True)
class MemorySettings(TrainerSettings):
    """The settings of runs that train a model with a memory."""

    input_names: ClassVar[Mapping[str, str]] = {
        **RunRecord.input_names,
        "model_checksum": "the weights of the base model",
    }

    model: str = setting(panel=INPUT, basic=True)
    """Model: Hugging Face name, folder, run folder or shipped:base."""
    data: str = setting(panel=INPUT, basic=True)
    """Training data."""
    recurrence: dict[str, Any] = setting(factory=lambda: {"mechanism": "carry"}, option=False)  # noqa: RUF009
    """The mechanism and its settings, as `RecurrenceConfig.to_dict` writes them."""
    added_learning_rate: float | None = setting(None, positive=True, option=False)
    """Learning rate of the memory's parameters (default: learning_rate)."""
    freeze_base: bool = setting(False, panel=TRAINING)
    """Train only the memory (and a new head); keep the base model fixed."""
    epochs: float = setting(3.0, positive=True, panel=BUDGET, basic=True)
    """Passes over the training data."""
    schedule: str = setting("linear", choices=SCHEDULES, option=False)
    """Learning rate after the warm-up: constant_with_warmup, linear or cosine."""
    model_checksum: str | None = setting(None, recorded=True, option=False)
    """Checksum of the base model's weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.recurrence.get("mechanism") not in (None, BEST)
        if known and not self.learns and self.freeze_base and self.frozen_has_nothing_to_train:
            raise UserError(
                f"`freeze_base` with mechanism {self.recurrence.get('mechanism')!r} leaves nothing to train: leave it "
                "out, or choose a mechanism with parameters."
            )
        if self.learns and 1 in self.window_counts:
            raise UserError(
                f"With windows and bptt_windows of {self.window_counts} no gradient reaches an earlier window, so the "
                "memory would learn nothing: use at least 2."
            )

    frozen_has_nothing_to_train: ClassVar[bool] = True
    """Whether nothing but the memory is trained with a frozen base."""

    @property
    def window_counts(self) -> tuple[int | None, ...]:
        """How many windows gradients can pass through."""
        return (self.recurrence.get("bptt_windows"),)

    @property
    def learns(self) -> bool:
        """Whether the memory is known to have parameters to train; `best` is decided when the base is loaded."""
        mechanism = self.recurrence.get("mechanism")
        return mechanism not in (None, BEST) and learns(mechanism)


@dataclass(frozen=True, kw_only=True)
class TrainSettings(MemorySettings):
    """Fine-tuning on text. The defaults are the paper's where it names a value."""

    may_differ: ClassVar[tuple[str, ...]] = ("max_minutes", "out", "report_to", "compile")

    data: str = setting(panel=INPUT, basic=True)
    """Training text: file, folder, corpus name or hf:owner/name."""
    valid: str | None = setting(None, panel=INPUT)
    """Validation text (default: the validation split of the data)."""
    text_field: str = setting("text", panel=INPUT)
    """Field of JSON lines or of a data set that contains the text."""
    recurrence: dict[str, Any] = setting(factory=lambda: {"mechanism": BEST}, option=False)  # noqa: RUF009
    """The mechanism and its settings, as `RecurrenceConfig.to_dict` writes them."""
    windows: int = setting(20, at_least=1, panel=TRAINING)
    """Windows per training sequence; gradients flow through all of them."""
    epochs: float = setting(2.0, positive=True, panel=BUDGET, basic=True)
    """Passes over the training text."""
    max_tokens: int | None = setting(None, positive=True, panel=BUDGET, basic=True)
    """Stop after about this many training tokens."""
    schedule: str = setting("constant_with_warmup", choices=SCHEDULES, option=False)
    """Learning rate after the warm-up: constant_with_warmup, linear or cosine."""
    valid_every: int = setting(2_000_000, at_least=1, panel=BUDGET)
    """Validate and save every this many training tokens."""
    valid_tokens: int = setting(15_000, at_least=2, option=False)
    """Validate on the first this many tokens of each document."""
    patience: int = setting(3, at_least=0, panel=BUDGET)
    """Validations without improvement before stopping (0 = never stop early)."""
    compile: str = setting("auto", choices=("auto", "on", "off", "graphs", "layers"), panel=TRAINING)
    """Compile windows: on, off, graphs (steps), layers (quick start); auto = graphs."""
    group_by_length: bool = setting(False, option=False)
    """Batch sequences of similar length: less padding for short documents."""

    @property
    def window_counts(self) -> tuple[int | None, ...]:
        return self.windows, self.recurrence.get("bptt_windows")


@dataclass(frozen=True, kw_only=True)
class TaskSettings(MemorySettings):
    """Training on examples with answers, scored on others at the end."""

    frozen_has_nothing_to_train: ClassVar[bool] = False

    test: str | None = setting(None, panel=INPUT)
    """Examples to score at the end."""


@dataclass(frozen=True, kw_only=True)
class ClassifySettings(TaskSettings):
    """Training a classifier; without `test` a tenth of the texts is held out."""

    data: str = setting(panel=INPUT, basic=True)
    """Texts with classes: .csv (with a header), .jsonl or hf:owner/name."""
    test: str | None = setting(None, panel=INPUT)
    """Texts to score at the end (default: a tenth of the data, held out)."""
    text_field: str = setting("text", panel=INPUT)
    """Column or field with the text."""
    label_field: str = setting("label", panel=INPUT)
    """Column or field with the class: a word or a whole number."""
    batch: int = setting(8, at_least=1, panel=TRAINING, basic=True)
    """Texts per step and device."""
    language_weight: float = setting(0.0, at_least=0, option=False)
    """Decoders: weight of the next-token loss added to the loss (GPT used 0.5)."""


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(TaskSettings):
    """Training a question answerer. The defaults are the paper's for HotpotQA."""

    model: str = setting(panel=INPUT, basic=True)
    """Encoder: Hugging Face name or folder."""
    data: str = setting(panel=INPUT, basic=True)
    """Questions: a SQuAD or HotpotQA file (JSON or JSON lines)."""
    test: str | None = setting(None, panel=INPUT)
    """Questions to answer and score at the end."""
    recurrence: dict[str, Any] = setting(factory=dict, option=False)  # noqa: RUF009
    """The mechanism and its settings; empty: those of the paper's question answering."""
    questions: int | None = setting(None, positive=True, panel=BUDGET, basic=True)
    """Train on this many questions, drawn at random (default: all)."""
    epochs: float = setting(4.0, positive=True, panel=BUDGET, basic=True)
    """Passes over the questions."""
    batch: int = setting(8, at_least=1, panel=TRAINING, basic=True)
    """Questions per step and device."""
    learning_rate: float = setting(2e-5, positive=True, panel=TRAINING, basic=True)
    """Learning rate."""
    longest_answer: int = setting(30, at_least=1, panel=BUDGET)
    """Longest answer in tokens."""
