"""The settings of a forecasting run. Command-line options are made from these fields."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from recurrify import UserError
from recurrify.records import RunRecord

NAIVE = ("last-value", "seasonal")
RIDGE = ("nlinear", "dlinear")
STATISTICAL = {"ets": "AutoETS", "theta": "AutoTheta", "arima": "AutoARIMA"}
NETWORKS = ("rsa-informer", "informer", "rsa-transformer", "transformer", "lstm", "gru", "linear", "tsmixer")
MODELS = ("auto", *NAIVE, *RIDGE, *STATISTICAL, *NETWORKS)
LARGEST_SEED = 2**32 - 1
RECURRENCE_LEARNING_RATE = 3e-2
"""docs/forecasting.md says how it was chosen."""


def option(default: Any, text: str, panel: str, choices: tuple[str, ...] = (), least: float | None = None) -> Any:
    """A field with its help, the panel of `--help` it appears in, and its valid values."""
    return field(default=default, metadata={"help": text, "panel": panel, "choices": choices, "least": least})


def _data(default: Any, text: str, **checks: Any) -> Any:
    return option(default, text, "Data", **checks)


def _model(default: Any, text: str, **checks: Any) -> Any:
    return option(default, text, "Networks", **checks)


def _training(default: Any, text: str, **checks: Any) -> Any:
    return option(default, text, "Training of networks", **checks)


@dataclass(frozen=True, kw_only=True)
class ForecastSettings(RunRecord):
    """Defaults of networks are Informer's, except for `distil`, `mix` and `schedule`."""

    may_differ: ClassVar[tuple[str, ...]] = ("out", "max_minutes", "device", "data")

    data: str = ""
    model: str = option("auto", f"One of {', '.join(MODELS)}.", "Data", choices=MODELS)
    horizon: int | None = _data(None, "Rows to forecast [default: about a season].", least=1)
    past: int | None = _data(None, "Rows that a network reads [default: 96, less for short files].", least=1)
    date_column: str | None = _data(None, "Column of dates [default: found by name or place].")
    id_column: str | None = _data(None, "Column of series names, for long format [default: unique_id].")
    columns: tuple[str, ...] | None = _data(None, "Columns to forecast, comma-separated [default: all numbers].")
    known: tuple[str, ...] = _data((), "Covariates that are known in advance, comma-separated.")
    freq: str | None = _data(None, "Step of the dates, like h, D or MS [default: found].")
    resample: str | None = _data(None, "Average rows to this step first, like h, D or MS.")
    split: str = _data("auto", "12/4/4 months (of 30 days), or shares like 0.7/0.1/0.2, or auto.")
    season: int | None = _data(None, "Steps of a season [default: a day, week or year].", least=1)
    label: int | None = _model(None, "Rows of the past that the decoder starts from [default: half].", least=0)
    width: int = _model(512, "Width of the hidden states.", least=1)
    heads: int = _model(8, "Attention heads.", least=1)
    inner: int | None = _model(None, "Width of the feed-forward part [default: four times the width].", least=1)
    encoder_layers: int = _model(2, "Layers of the encoder, or of an LSTM or GRU.", least=1)
    decoder_layers: int = _model(1, "Layers of the decoder.", least=1)
    dropout: float = _model(0.05, "Dropout probability.")
    factor: int = _model(5, "ProbSparse attention computes factor x ceil(ln T) of T rows.", least=1)
    distil: bool = _model(False, "Halve the sequence between encoder layers, as in Informer.")
    mix: bool = _model(False, "Mix rows and heads after the decoder's self-attention, as in Informer's code.")
    counts: tuple[int, ...] = _model((0, 2, 2, 0, 2, 2), "RSA: heads that are regular, cosine, sine, and dilated ones.")
    dilations: tuple[int, ...] | None = _model(None, "RSA: one per dilated head [default: 3,6,12,... in each kind].")
    recurrence_rows: str = _model(
        "all", "RSA-Informer: rows with recurrence, all or selected.", choices=("all", "selected")
    )
    gate_start: float | None = _model(None, "RSA: initial logit of the gates [default: drawn from U(-3, 3)].")
    epochs: int = _training(6, "Largest number of epochs.", least=1)
    patience: int = _training(3, "Epochs without improvement before stopping (0 = never).", least=0)
    batch: int = _training(32, "Windows per step.", least=1)
    learning_rate: float = _training(1e-4, "Learning rate of the first epoch.", least=0)
    recurrence_learning_rate: float | None = _training(
        RECURRENCE_LEARNING_RATE, "RSA: learning rate of gates, decays and angles.", least=0
    )
    schedule: str = _training(
        "halve",
        "halve, published (halve from the third epoch), cosine or constant.",
        choices=("halve", "published", "cosine", "constant"),
    )
    halve_every: int = _training(1, "Epochs between halvings.", least=1)
    order: str = _training("shuffled", "Training windows: shuffled or sequential.", choices=("shuffled", "sequential"))
    epoch_windows: int | None = _training(None, "Windows per epoch [default: all].", least=1)
    valid_windows: int | None = _training(None, "Validation windows, spread evenly [default: all].", least=1)
    precision: str = _training("auto", "auto (tf32 on CUDA), bf16 or fp32.", choices=("auto", "bf16", "fp32"))
    speed: str = _training(
        "auto", "auto (graph on CUDA), plain, graph or compile.", choices=("auto", "plain", "graph", "compile")
    )
    seed: int = _training(0, "Seed of the weights and of shuffling.", least=0)
    device: str = "cpu"
    data_checksum: str | None = None
    """Of the file: a changed file is another run."""

    def __post_init__(self) -> None:
        for name, kind in {"columns": str, "known": str, "counts": int, "dilations": int}.items():
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name), kind))
        for name, entry in self.__dataclass_fields__.items():
            value, checks = getattr(self, name), entry.metadata
            if checks.get("choices") and value not in checks["choices"]:
                raise UserError(f"`{name}` must be one of {', '.join(checks['choices'])}: got {value!r}.")
            least = checks.get("least")
            if value is not None and least is not None and not (math.isfinite(value) and value >= least):
                raise UserError(f"`{name}` must be at least {least:g}: got {value}.")
        if self.seed > LARGEST_SEED:
            raise UserError(f"`seed` must be at most {LARGEST_SEED}: got {self.seed}.")
        if self.max_minutes is not None and not 0 < self.max_minutes < math.inf:
            raise UserError(f"`max_minutes` must be a positive number: got {self.max_minutes}.")
        if self.past is not None and self.label is not None and self.label > self.past:
            raise UserError(f"`label` must be at most `past`: got label={self.label}, past={self.past}.")
        if self.speed == "graph" and self.device == "cpu":
            raise UserError(f"`speed='graph'` needs a CUDA device: got device={self.device!r}; use plain or compile.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"`dropout` must be at least 0 and below 1: got {self.dropout}.")
        if len(self.counts) != 6:
            raise UserError(f"`counts` must be six numbers of heads: got {self.counts}.")


def _as_tuple(name: str, value: Any, kind: type) -> tuple[Any, ...] | None:
    if value is None:
        return None
    try:
        parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        return tuple(kind(part) for part in parts)
    except ValueError:
        raise UserError(f"`{name}` must be comma-separated numbers: got {value!r}.") from None
