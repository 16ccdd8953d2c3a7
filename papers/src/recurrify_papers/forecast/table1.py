"""Table 1 of the RSA paper, run by us: sixteen settings, Informer and RSA-Informer alike, seeds side by side."""

import functools
import hashlib
import heapq
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from recurrify.errors import UserError
from recurrify.interrupts import unless_interrupted
from recurrify.processes import processes
from recurrify.results import load_result, provenance, save_result
from recurrify.speed.compiling import compile_alone
from recurrify_papers.forecast.evaluation import evaluate_forecaster
from recurrify_papers.forecast.published import SETTINGS, Setting
from recurrify_papers.forecast.reading import Series, read_series
from recurrify_papers.forecast.running import train_forecaster, try_out
from recurrify_papers.forecast.settings import RECURRENCE_LEARNING_RATE, UNTRAINED, ForecastSettings
from recurrify_papers.forecast.shapes import recurrence_shapes
from recurrify_papers.forecast.table1_rows import PAIR, RECURRENCE, assembled, check_alike, config_of, table_of
from recurrify_papers.forecast.training import precision_context

MODELS = (*PAIR, "linear", "seasonal", "last-value")
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How every model of the table is trained: the same for all, but for the learning rate chosen on validation."""

    width: int = 512
    inner: int = 2048
    dropout: float = 0.05
    epochs: int = 24
    patience: int = 4
    batch: int = 32
    learning_rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    """With more than one, the first seed tries all, and each model goes on with the best on validation."""
    schedule: str = "halve"
    halve_every: int = 4
    order: str = "shuffled"
    """`sequential` is what the RSA authors say they used."""
    epoch_windows: int | None = 2125
    """A quarter of ETTh1: many runs are at their best before they have seen all windows once. None: all."""
    valid_windows: int | None = 1000
    distil: bool = False
    mix: bool = False
    """On in Informer's published code."""
    recurrence_rows: str = "all"
    gate_start: float | None = None
    recurrence_learning_rate: float | None = RECURRENCE_LEARNING_RATE
    """Of the recurrence's own parameters; None is that of the others."""
    precision: str = "auto"
    speed: str = "auto"


@dataclass(frozen=True)
class Unit:
    """One training: a setting, a model, a learning rate, a seed."""

    setting: Setting
    model: str
    rate: float
    seed: int
    recipe: Recipe
    folder: str
    """Of the data."""
    root: str
    device: str

    @property
    def name(self) -> str:
        return f"{self.setting.name}-{self.model}-{self.rate:g}-s{self.seed}"

    @property
    def data(self) -> Path:
        return Path(self.folder) / f"{self.setting.data}.csv"

    @property
    def path(self) -> Path:
        return Path(self.root) / "units" / f"{self.name}.json"

    @property
    def training(self) -> Path:
        """Where its training is saved, until the result is there."""
        return self.path.with_suffix(".training")

    @property
    def log(self) -> Path:
        """One line for each epoch."""
        return logs_of(self.root) / f"{self.name}.log"

    @property
    def cost(self) -> int:
        """Roughly, in rows through layers."""
        one = self.setting
        rows = one.past * one.encoder_layers + (one.label + one.horizon) * one.decoder_layers
        return rows * {"ETTm1": 4, "WTH": 3}.get(one.data, 1) * (self.model not in UNTRAINED)

    def settings(self) -> ForecastSettings:
        recipe = {name: value for name, value in asdict(self.recipe).items() if name != "learning_rates"}
        if not self.model.startswith("rsa-"):
            recipe |= RECURRENCE
        one = self.setting
        return ForecastSettings(
            data=f"{one.data}.csv",
            out=self.name,
            model=self.model,
            past=one.past,
            label=one.label,
            horizon=one.horizon,
            encoder_layers=one.encoder_layers,
            decoder_layers=one.decoder_layers,
            factor=one.factor,
            counts=one.counts,
            learning_rate=self.rate,
            seed=self.seed,
            device=self.device,
            **recipe,
        )

    def is_finished(self) -> bool:
        """Whether its result is there; one of another recipe or of other data is refused, for a table mixes none."""
        if not self.path.is_file():
            return False
        result = load_result(self.path)
        origin, there = result["provenance"], config_of(result)
        mine = self.settings().to_dict()
        different = [
            name
            for name, value in mine.items()
            if name != "device" and there.get(name) != (list(value) if isinstance(value, tuple) else value)
        ]
        if different:
            raise UserError(
                f"{self.path} was run with another {' and '.join(different)}: "
                "repeat its settings, or choose another --root."
            )
        if origin["data_checksum"] != file_checksum(self.data):
            raise UserError(
                f"{self.path} was run with another {self.data.name} than the one in --data (its checksum differs): "
                "give that one, or choose another --root."
            )
        return True

    def check_training(self, data_checksum: str | None = None) -> ForecastSettings:
        """The settings to train with, into `training`; refused where what lies there was of another recipe or data.

        Without a checksum the data are not looked at.
        """
        mine = replace(self.settings(), out=str(self.training), data_checksum=data_checksum)
        earlier = ForecastSettings.read(self.training)
        if earlier is not None:
            mine.check_same_run(earlier if data_checksum else replace(earlier, data_checksum=None))
        return mine


def logs_of(root: str) -> Path:
    return Path(root) / "logs"


def file_checksum(path: Path) -> str:
    """As a result's provenance has it; read once for all units, unless the file changes."""
    there = path.stat()
    return _checksum(path, there.st_mtime_ns, there.st_size)


@functools.lru_cache(maxsize=8)
def _checksum(path: Path, _changed: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=8)
def _series(path: str) -> Series:
    return read_series(path)


def do_unit(unit: Unit, deadline: float | None = None) -> dict[str, Any] | None:
    """Train, score on the test part, save; None where the time, a `time.time()`, was up before the end.

    A training that was stopped by the time or by Ctrl-C goes on where it was, and one that was killed behind the last
    epoch that was saved.
    """
    started = time.time()
    if deadline is not None and started >= deadline:
        return None
    series = _series(str(unit.data))
    settings = unit.check_training(series.checksum)
    if settings.trains:
        settings.write()
    # A moment at least: the time may be up by now, which the training finds for itself.
    limit = None if deadline is None else max(deadline - time.time(), 1e-3) / 60
    folder = unit.training if settings.trains else None
    trained = train_forecaster(
        replace(settings, max_minutes=limit), series, series.columns[-1], folder, functools.partial(_log_epoch, unit)
    )
    if trained.intervals is None:
        return None
    model, data = trained.model, trained.data
    with precision_context(settings):
        scores = evaluate_forecaster(model, data, trained.intervals)
    result = {
        "setting": unit.setting.name,
        "model": unit.model,
        "learning_rate": unit.rate,
        "seed": unit.seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "best_epoch": trained.outcome.best_epoch,
        "history": trained.outcome.history,
        "seconds_per_epoch": trained.outcome.seconds_per_epoch,
        "valid_mse": trained.outcome.valid_mse,
        "test": with_short_lists(scores),
        "recurrence": with_short_lists(recurrence_shapes(model)),
        "recurrence_start": [{"layer": one["layer"], "gate": one["gate"]} for one in trained.recurrence_start],
        "provenance": provenance(
            unit.settings().to_dict(), seed=unit.seed, data_checksum=series.checksum, started=started
        ),
    }
    save_result(unit.path, result)
    forget_training(unit)
    return result


def with_short_lists(value: Any) -> Any:
    """Six digits of the numbers in lists: a table has hundreds of runs, and nobody compares curves by the seventh."""
    if isinstance(value, dict):
        return {name: with_short_lists(one) for name, one in value.items()}
    if isinstance(value, list):
        return [float(f"{one:.6g}") if isinstance(one, float) else with_short_lists(one) for one in value]
    return value


def forget_training(unit: Unit) -> None:
    """What the result has made superfluous."""
    shutil.rmtree(unit.training, ignore_errors=True)


def _log_epoch(unit: Unit, epoch: dict[str, Any]) -> None:
    unit.log.parent.mkdir(parents=True, exist_ok=True)
    with unit.log.open("a", encoding="utf-8") as file:
        file.write(
            f"epoch {epoch['epoch']}: training MSE {epoch['train_mse']:.4f}, validation MSE {epoch['valid_mse']:.4f}, "
            f"{epoch['seconds']:.1f} s\n"
        )


def _in_worker(unit: Unit, deadline: float | None) -> bool:
    torch.set_num_threads(1)
    compile_alone()
    return unless_interrupted(do_unit, unit, deadline) is not None


def do_units(
    units: Sequence[Unit],
    jobs: int,
    say: Say,
    deadline: float | None = None,
    then: Callable[[Unit], Sequence[Unit]] = lambda _: (),
    to_follow: int = 0,
) -> None:
    """Do what is not finished, several side by side on one device; what there is no time for waits for the next call.

    The workers are kept, so that torch is loaded and the data read once in each. `then` names what can be done once a
    unit has its result; `to_follow` is how many that will be in all. A unit that fails does not stop the others; the
    first failure is raised when all are through.
    """
    waiting = _unfinished(units)
    total = len(waiting) + to_follow
    if waiting:
        begun = sum(unit.training.is_dir() for unit in waiting)
        say(
            f"{total} of {len(units) + to_follow} runs to do, {begun} of them begun before, {min(jobs, total)} side "
            f"by side; a line for each epoch goes to {logs_of(waiting[0].root)}"
        )
    failures: list[str] = []
    known = set(units)
    for done, (unit, outcome, add) in enumerate(_outcomes(waiting, jobs, deadline), start=1):
        try:
            in_time = outcome()
        except (RuntimeError, UserError) as error:  # out of memory is a RuntimeError too
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            failures.append(f"{unit.name}: {reason}")
            say(f"{done} of {total}: {unit.name} failed: {reason}")
            continue
        following = [one for one in then(unit) if one not in known]
        known.update(following)
        more = _unfinished(following)
        total -= len(following) - len(more)
        add(more)
        say(f"{done} of {total}: {unit.name} {'' if in_time else 'waits: the time is up'}".rstrip())
    if failures:
        raise UserError(f"{len(failures)} runs failed, the others are saved; the first: {failures[0]}")


def _unfinished(units: Sequence[Unit]) -> list[Unit]:
    """What lies there of another recipe or of other data is refused."""
    waiting = []
    for unit in units:
        if unit.is_finished():
            forget_training(unit)  # left where a process was ended between result and tidying up
        else:
            unit.check_training()
            waiting.append(unit)
    return waiting


class _Waiting:
    """The costliest first, so that none is left alone at the end."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.heap: list[tuple[int, int, Unit]] = []
        self.added = 0
        self.add(units)

    def add(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self.added += 1
            heapq.heappush(self.heap, (-unit.cost, self.added, unit))

    def take(self) -> Unit:
        return heapq.heappop(self.heap)[2]


def _outcomes(
    units: Sequence[Unit], jobs: int, deadline: float | None
) -> Iterator[tuple[Unit, Callable[[], bool], Callable[[Sequence[Unit]], None]]]:
    """Each unit with its outcome, and with a function that adds others to those that wait."""
    waiting = _Waiting(units)
    if jobs == 1:
        while waiting.heap:
            unit = waiting.take()
            yield unit, functools.partial(lambda unit: do_unit(unit, deadline) is not None, unit), waiting.add
        return
    # Spawned, for a process that has used CUDA cannot be forked.
    with processes(jobs) as pool:
        futures: dict[Future[bool], Unit] = {}
        while futures or waiting.heap:
            while waiting.heap and len(futures) < jobs:
                unit = waiting.take()
                futures[_begun(pool, unit, deadline)] = unit
            for future in wait(futures, return_when=FIRST_COMPLETED).done:
                yield futures.pop(future), future.result, waiting.add


def _begun(pool: Executor, unit: Unit, deadline: float | None) -> Future[bool]:
    try:
        return pool.submit(_in_worker, unit, deadline)
    except RuntimeError as error:  # a worker was ended from outside, and all others with it
        failed: Future[bool] = Future()
        failed.set_exception(error)
        return failed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a run of the table is made of."""

    folder: str
    """Of the CSV files."""
    root: str
    settings: Sequence[Setting]
    models: tuple[str, ...] = MODELS
    seeds: int = 3
    recipe: Recipe = Recipe()
    jobs: int = 1
    device: str = "cpu"

    def unit(self, setting: Setting, model: str, rate: float, seed: int) -> Unit:
        return Unit(setting, model, rate, seed, self.recipe, self.folder, self.root, self.device)

    def trials(self) -> list[Unit]:
        """The first seed of every model at every learning rate; with a single rate, all seeds."""
        return [unit for unit in self._every() if unit.seed == 0 or len(self._rates(unit.model)) == 1]

    def finals(self) -> list[Unit]:
        """All seeds of every model at the learning rate that was best on validation, where all have been tried."""
        return [unit for setting in self.settings for model in self.models for unit in self.seeds_of(setting, model)]

    def seeds_of(self, setting: Setting, model: str) -> list[Unit]:
        """None as long as a learning rate has not been tried."""
        trials = [self.unit(setting, model, rate, 0) for rate in self._rates(model)]
        best = trials[0]
        if len(trials) > 1:
            if not all(unit.path.is_file() for unit in trials):
                return []
            best = min(trials, key=lambda unit: load_result(unit.path)["valid_mse"])
        return [replace(best, seed=seed) for seed in range(self._seeds(model))]

    def check(self) -> None:
        """Refuse, before anything is trained, models that cannot be, and runs that would not go into one table with
        those that lie there."""
        for unit in {(unit.setting, unit.model): unit for unit in self.trials()}.values():
            try_out(unit.settings(), _series(str(unit.data)))
        for unit in self._every():
            unit.check_training()  # also of seeds whose turn comes late
        planned = [unit for unit in self.trials() if not unit.path.is_file()]
        asked = [
            {
                "model": unit.model,
                "provenance": {"config": unit.settings().to_dict(), "data_checksum": file_checksum(unit.data)},
            }
            for unit in planned
        ]
        there = sorted((Path(self.root) / "units").glob("*.json"))
        check_alike([*there, *(unit.path for unit in planned)], [*map(load_result, there), *asked])

    def to_follow(self) -> int:
        """Runs whose learning rate has not been chosen yet."""
        unknown = [model for setting in self.settings for model in self.models if not self.seeds_of(setting, model)]
        return sum(self._seeds(model) - 1 for model in unknown)

    def _every(self) -> list[Unit]:
        """All that could become part of the table."""
        return [
            self.unit(setting, model, rate, seed)
            for setting in self.settings
            for model in self.models
            for rate in self._rates(model)
            for seed in range(self._seeds(model))
        ]

    def runs(self) -> int:
        """How many the table is made of."""
        return len(self.settings) * sum(self._seeds(model) for model in self.models)

    def _seeds(self, model: str) -> int:
        return 1 if model in UNTRAINED else self.seeds

    def _rates(self, model: str) -> tuple[float, ...]:
        return self.recipe.learning_rates[:1] if model in UNTRAINED else self.recipe.learning_rates


def run_table1(plan: Plan, say: Say, deadline: float | None = None) -> dict[str, Any]:
    """Run what is missing and write `table1.json`; `missing` says how many runs there was no time for: the same call
    goes on with them."""
    started = time.time()
    for setting in plan.settings:
        path = Path(plan.folder) / f"{setting.data}.csv"
        if not path.is_file():
            raise UserError(f"{path} does not exist: --data must be a folder with {setting.data}.csv.")
    plan.check()
    units = list(dict.fromkeys((*plan.trials(), *plan.finals())))
    do_units(units, plan.jobs, say, deadline, lambda tried: plan.seeds_of(tried.setting, tried.model), plan.to_follow())
    finals = plan.finals()
    finished = sum(unit.path.is_file() for unit in finals)
    to_go = sum(not unit.path.is_file() for unit in {*plan.trials(), *finals}) + plan.to_follow()
    config = {"recipe": asdict(plan.recipe), "models": plan.models, "seeds": plan.seeds, "jobs": plan.jobs}
    # Of all that lies there: other calls may have run other models or settings.
    known = {setting.name: setting for setting in (*SETTINGS, *plan.settings)}
    result = assembled(plan.root, list(known.values())) or table_of(plan.settings, [])
    result |= {"missing": max(plan.runs() - finished, result.get("missing", 0)), "to_go": to_go}
    result["provenance"] = provenance(config, started=started)
    save_result(Path(plan.root) / "table1.json", result)
    return result
