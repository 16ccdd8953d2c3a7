"""The settings of a forecasting run. Command-line options are made from these fields."""

from dataclasses import dataclass
from typing import Any, ClassVar

from recurrify import UserError
from recurrify.records import RunRecord
from recurrify.settings import setting

NAIVE = ("last-value", "seasonal")
RIDGE = ("nlinear", "dlinear", "median")
STATISTICAL = {"ets": "AutoETS", "theta": "AutoTheta", "arima": "AutoARIMA"}
NETWORKS = ("rsa-informer", "informer", "rsa-transformer", "transformer", "linear", "tsmixer")
MODELS = ("auto", *NAIVE, *RIDGE, "average", *STATISTICAL, *NETWORKS)
DATA, BUDGET, NETWORK, TRAINING = "Data", "Budget", "Networks", "Training of networks"


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Of a setting that takes several."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"`{name}` must be whole numbers separated by commas: got {text!r}.") from None


@dataclass(frozen=True, kw_only=True)
class ForecastSettings(RunRecord):
    """Defaults of networks are Informer's, except for `distil`, `mix` and `schedule`."""

    may_differ: ClassVar[tuple[str, ...]] = ("out", "max_minutes", "device", "data")

    data: str = setting(panel=DATA, basic=True)
    """CSV or Parquet file with a column of dates and columns of numbers."""
    out: str = setting("", panel=DATA, basic=True)
    """Folder of the run (default: runs/forecast/NAME); run the same command again to resume."""
    model: str = setting("auto", choices=MODELS, panel=DATA, basic=True)
    """auto (chosen on validation), last-value, seasonal, nlinear, dlinear, median, average, ets, theta, arima, tsmixer,
    linear, or a network: rsa-informer, informer, rsa-transformer, transformer."""
    horizon: int | None = setting(None, at_least=1, panel=DATA, basic=True)
    """Rows to forecast (default: about a season)."""
    columns: list[str] | None = setting(None, panel=DATA, basic=True)  # noqa: RUF009
    """Column to forecast; may be repeated (default: all numbers)."""
    known: list[str] | None = setting(None, panel=DATA, basic=True)  # noqa: RUF009
    """Covariate that is known in advance; may be repeated."""
    id_column: str | None = setting(None, panel=DATA, basic=True)
    """Column of series names, for long format (default: unique_id)."""
    date_column: str | None = setting(None, panel=DATA)
    """Column of dates (default: found by name or place)."""
    freq: str | None = setting(None, panel=DATA)
    """Step of the dates, like h, D or MS (default: found)."""
    resample: str | None = setting(None, panel=DATA, basic=True)
    """Average rows to this step first, like h, D or MS."""
    split: str = setting("auto", panel=DATA)
    """12/4/4 months (of 30 days), or shares like 0.7/0.1/0.2, or auto."""
    season: int | None = setting(None, at_least=1, panel=DATA)
    """Steps of a season (default: a day, week or year)."""
    max_minutes: float | None = setting(None, positive=True, panel=BUDGET, basic=True)
    """Time budget; auto uses 1 minute by default."""
    device: str = setting("auto", panel=BUDGET)
    """auto, cpu, cuda or cuda:N."""
    past: int | None = setting(None, at_least=1, panel=NETWORK)
    """Rows that a network reads (default: 96, less for short files)."""
    width: int = setting(512, at_least=1, panel=NETWORK)
    """Width of the hidden states."""
    encoder_layers: int = setting(2, at_least=1, panel=NETWORK)
    """Layers of the encoder."""
    dropout: float = setting(0.05, at_least=0, at_most=0.99, panel=NETWORK)
    """Dropout probability."""
    label: int | None = setting(None, at_least=0, option=False)
    """Rows of the past that the decoder starts from (default: half)."""
    heads: int = setting(8, at_least=1, option=False)
    """Attention heads."""
    inner: int | None = setting(None, at_least=1, option=False)
    """Width of the feed-forward part (default: four times the width)."""
    decoder_layers: int = setting(1, at_least=1, option=False)
    """Layers of the decoder."""
    factor: int = setting(5, at_least=1, option=False)
    """ProbSparse attention computes factor x ceil(ln T) of T rows."""
    distil: bool = setting(False, option=False)
    """Halve the sequence between encoder layers, as in Informer."""
    mix: bool = setting(False, option=False)
    """Mix rows and heads after the decoder's self-attention, as in Informer's code."""
    counts: str = setting("0,2,2,0,2,2", option=False)
    """RSA: heads that are regular, cosine, sine, and dilated ones."""
    dilations: str | None = setting(None, option=False)
    """RSA: one per dilated head (default: 3,6,12,... in each kind)."""
    recurrence_rows: str = setting("all", choices=("all", "selected"), option=False)
    """RSA-Informer: rows with recurrence, all or selected."""
    gate_start: float | None = setting(None, option=False)
    """RSA: initial logit of the gates (default: drawn from U(-3, 3))."""
    epochs: int = setting(6, at_least=1, panel=TRAINING)
    """Largest number of epochs."""
    batch: int = setting(32, at_least=1, panel=TRAINING)
    """Windows per step."""
    learning_rate: float = setting(1e-4, at_least=0, panel=TRAINING)
    """Learning rate of the first epoch."""
    seed: int = setting(0, at_least=0, at_most=2**32 - 1, panel=TRAINING)
    """Seed of the weights and of shuffling."""
    patience: int = setting(3, at_least=0, option=False)
    """Epochs without improvement before stopping (0 = never)."""
    recurrence_learning_rate: float | None = setting(3e-2, at_least=0, option=False)
    """RSA: learning rate of gates, decays and angles (chosen on validation, see the page on forecasting)."""
    schedule: str = setting("halve", choices=("halve", "published", "cosine", "constant"), option=False)
    """halve, published (halve from the third epoch), cosine or constant."""
    halve_every: int = setting(1, at_least=1, option=False)
    """Epochs between halvings."""
    order: str = setting("shuffled", choices=("shuffled", "sequential"), option=False)
    """Training windows: shuffled or sequential."""
    epoch_windows: int | None = setting(None, at_least=1, option=False)
    """Windows per epoch (default: all)."""
    valid_windows: int | None = setting(None, at_least=1, option=False)
    """Validation windows, spread evenly (default: all)."""
    precision: str = setting("auto", choices=("auto", "bf16", "fp32"), option=False)
    """auto (tf32 on CUDA), bf16 or fp32."""
    speed: str = setting("auto", choices=("auto", "plain"), option=False)
    """auto (steps captured as a CUDA graph, if possible) or plain."""
    data_checksum: str | None = setting(None, recorded=True, option=False)
    """Of the file: a changed file is another run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.past is not None and self.label is not None and self.label > self.past:
            raise UserError(f"`label` must be at most `past`: got label={self.label}, past={self.past}.")

    @property
    def layout(self) -> dict[str, Any]:
        """How to read the file: arguments of `read_series`."""
        return {name: getattr(self, name) for name in LAYOUT}


LAYOUT = ("date_column", "id_column", "columns", "known", "freq", "resample")
