"""Everything a forecasting run is made of, in one flat record that is written beside its weights and read back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from recurrify.errors import UserError
from recurrify.records import RunRecord

MODELS = (
    "informer",
    "rsa-informer",
    "transformer",
    "rsa-transformer",
    "lstm",
    "gru",
    "linear",
    "last-value",
    "seasonal",
)
LARGEST_SEED = 2**32 - 1
UNTRAINED = ("last-value", "seasonal")
HALVING = ("halve", "published")
"""Schedules."""
RECURRENCE_LEARNING_RATE = 3e-2
"""What the commands give the recurrence of rsa- models, unless they are told; docs/forecasting.md says how it was
chosen."""


@dataclass(frozen=True, kw_only=True)
class ForecastSettings(RunRecord):
    """The defaults are Informer's where it names a value, but for `distil`, `mix` and `schedule`."""

    may_differ: ClassVar[tuple[str, ...]] = ("out", "max_minutes", "device")

    data: str
    """A CSV file with a column of dates."""
    model: str = "informer"
    """One of `MODELS`; those that begin with rsa- add recurrence to the self-attention."""
    date_column: str | None = None
    """The column of dates; None finds it."""
    columns: tuple[str, ...] | None = None
    """The columns to read; None takes all that hold numbers."""
    target: str | None = None
    """The column of univariate forecasts and of plots; None is the last that is not constant."""
    univariate: bool = False
    """Read and forecast the target alone, instead of all columns."""
    split: str = "auto"
    """`12/4/4 months`, shares such as `0.7/0.1/0.2`, or `auto`, which is as published."""
    past: int = 96
    """Rows that are read (seq_len of Informer)."""
    label: int = 48
    """Rows of the past that the decoder starts from (label_len)."""
    horizon: int = 24
    """Rows that are forecast (pred_len)."""
    width: int = 512
    heads: int = 8
    inner: int = 2048
    """Width inside the feed-forward part."""
    encoder_layers: int = 2
    """Also the layers of an LSTM or GRU."""
    decoder_layers: int = 1
    dropout: float = 0.05
    factor: int = 5
    """ProbSparse looks at factor · ⌈ln T⌉ of T rows."""
    distil: bool = False
    """Halve the sequence between encoder layers; published for Informer, left out by the authors of RSA."""
    mix: bool = False
    """Exchange rows and heads of what the decoder's self-attention gives, as Informer's code does unless told."""
    counts: tuple[int, ...] = (0, 2, 2, 0, 2, 2)
    """Heads of each kind of recurrence, for the rsa- models: regular, cosine, sine, and the three dilated."""
    dilations: tuple[int, ...] | None = None
    """One for each dilated head; None takes 3, 6, 12, … within each kind."""
    recurrence_rows: str = "all"
    """Rows of ProbSparse attention that get recurrence: all or selected."""
    gate_start: float | None = None
    """The first value of the gates' logit; None draws it from U(−3, 3)."""
    season: int | None = None
    """Steps of a season, for the seasonal forecast; None takes a day, week or year by the step of the data."""
    epochs: int = 6
    batch: int = 32
    learning_rate: float = 1e-4
    recurrence_learning_rate: float | None = None
    """Of the recurrence's own parameters (gates, decays, angles), for the rsa- models; None is that of the others,
    at which they hardly move. It follows the same schedule."""
    schedule: str = "halve"
    """The learning rate after the first epoch: `halve` at each, `published`, as Informer's code has it, which halves
    from the third epoch on, `cosine` to zero, or `constant`."""
    halve_every: int = 1
    """Epochs from one halving to the next: more than one where epochs are short."""
    weight_decay: float = 0.0
    patience: int = 3
    """Epochs in a row without a better validation before stopping; 0 never stops early."""
    order: str = "shuffled"
    """Of the training windows: `shuffled`, or `sequential`, in the order of time."""
    epoch_windows: int | None = None
    """Use so many of the training windows in an epoch, another choice in each; None takes all."""
    valid_windows: int | None = None
    """Validate on so many windows, spread evenly over the validation part; None takes all."""
    precision: str = "auto"
    """auto (tf32 on CUDA, else fp32), bf16 or fp32."""
    speed: str = "auto"
    """How a step runs: plain, graph (a captured CUDA graph), compile (torch.compile), or auto: graph on CUDA,
    but for LSTM and GRU."""
    seed: int = 0
    device: str = "cpu"
    data_checksum: str | None = None
    """Of the file, written down when the run begins: a file that has changed is another run."""

    def __post_init__(self) -> None:
        for name in ("columns", "counts", "dilations"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        _check_choices(self)
        at_least = dict.fromkeys(("past", "horizon", "width", "heads", "inner", "encoder_layers", "decoder_layers"), 1)
        at_least |= {
            "factor": 1,
            "epochs": 1,
            "halve_every": 1,
            "batch": 1,
            "label": 0,
            "patience": 0,
            "seed": 0,
            "weight_decay": 0,
        }
        for name, least in at_least.items():
            if not getattr(self, name) >= least:
                raise UserError(f"`{name}` must be at least {least}: got {getattr(self, name)}.")
        if self.seed > LARGEST_SEED:
            raise UserError(f"`seed` must be at most {LARGEST_SEED}: got {self.seed}.")
        for name in (
            "learning_rate",
            "recurrence_learning_rate",
            "max_minutes",
            "epoch_windows",
            "valid_windows",
            "season",
        ):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"`{name}` must be a positive number: got {value}.")
        if self.halve_every > 1 and self.schedule not in HALVING:
            raise UserError(f"`halve_every` is for schedules that halve, and {self.schedule!r} does not: leave it out.")
        if self.label > self.past:
            raise UserError(f"`label` must lie in the past: got label={self.label}, past={self.past}.")
        if self.speed == "graph" and not self.device.startswith("cuda"):
            raise UserError(f"`speed='graph'` needs a CUDA device: got device={self.device!r}; use plain or compile.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"`dropout` must be at least 0 and below 1: got {self.dropout}.")

    @property
    def trains(self) -> bool:
        return self.model not in UNTRAINED


def recurrence_rate(rate: float, others: Sequence[float]) -> float | None:
    """As it is written down: None where the others learn at that rate too, so that both ways to say it are one run."""
    return None if set(others) == {rate} else rate


def _check_choices(settings: ForecastSettings) -> None:
    choices = {
        "model": MODELS,
        "schedule": ("halve", "published", "cosine", "constant"),
        "order": ("shuffled", "sequential"),
        "precision": ("auto", "bf16", "fp32"),
        "speed": ("auto", "plain", "graph", "compile"),
        "recurrence_rows": ("all", "selected"),
    }
    for name, known in choices.items():
        if getattr(settings, name) not in known:
            raise UserError(f"`{name}` must be one of {', '.join(known)}: got {getattr(settings, name)!r}.")
