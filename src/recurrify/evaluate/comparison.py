"""A model with memory compared with its base, in the ways that a sceptic would compare them.

The base is scored in the memory's own windows; in its full context; and, for as many FLOPs per token as the memory
takes, with overlapping windows and with longer windows. All of them score the same tokens.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from recurrify.errors import UserError
from recurrify.evaluate.bootstrap import Gain, interval, relative_gain
from recurrify.evaluate.evaluation import METRICS, Evaluation, ScoredDocument
from recurrify.evaluate.flops import full_flops_per_token
from recurrify.evaluate.perplexity import as_recurrent, evaluate_documents
from recurrify.families import family_of
from recurrify.mechanisms.config import MechanismConfig
from recurrify.modeling.heads import RecurrentForCausalLM, add_recurrence
from recurrify.records import RUN_FILE

WINDOWS_PER_CALL = 8
SAME_TRAINING = (
    *("model", "epochs", "max_tokens", "batch", "accumulate", "learning_rate", "schedule", "warmup_steps", "patience"),
    *("windows", "freeze_base", "seed"),
)
"""Settings of `recurrify train` that must be equal for two models to differ in their memory alone."""


class ComparisonSetting(NamedTuple):
    """How the memory or the base reads the documents."""

    name: str
    """memory, same_windows, full_context, equal_flops_overlap or equal_flops_window."""
    window: int
    overlap: int
    flops_per_token: float

    @property
    def label(self) -> str:
        """The setting in words."""
        windows = f"windows of {self.window:,}" + (f" with an overlap of {self.overlap:,}" if self.overlap else "")
        return {
            "memory": f"memory, {windows}",
            "same_windows": f"base, the same {windows}",
            "full_context": f"base, its full context ({windows})",
            "equal_flops_overlap": f"base, overlap for as many FLOPs ({windows})",
            "equal_flops_window": f"base, longer windows for as many FLOPs ({windows})",
        }[self.name]


@dataclass(frozen=True)
class ComparisonRow:
    """One line of the comparison."""

    setting: ComparisonSetting
    evaluation: Evaluation
    gain: Gain | None
    """How much lower the memory's perplexity per token is than this row's; None for the memory itself."""

    def __str__(self) -> str:
        text = f"{self.setting.label}: {self.evaluation.perplexity_per_token:.4g} perplexity per token, "
        text += f"{self.setting.flops_per_token:.3g} FLOPs per token"
        if self.gain is not None:
            lower = "lower" if self.gain.relative_gain >= 0 else "higher"
            text += f"; the memory's is {100 * abs(self.gain.relative_gain):.1f} % {lower}"
            if self.gain.interval is not None:
                low, high = (100 * end for end in self.gain.interval)
                noise = ", within noise" if self.gain.within_noise else ""
                text += f" (95 % interval {low:.1f} to {high:.1f} %{noise})"
        return text

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON types, every metric with its 95 % interval over documents."""
        metrics = {name: self.evaluation.metric(name) for name in METRICS}
        intervals = {f"{name}_interval": interval(self.evaluation, name) for name in METRICS}
        gain = None if self.gain is None else asdict(self.gain)
        return {**self.setting._asdict(), "label": self.setting.label, **metrics, **intervals, "gain": gain}


def compare_with_base(
    model: PreTrainedModel,
    documents: Sequence[ScoredDocument],
    config: MechanismConfig | None = None,
    *,
    base: PreTrainedModel | None = None,
    rows: int = 8,
    bf16: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[ComparisonRow]:
    """Score a model with memory and its base on the same tokens; the memory's row comes first.

    Args:
        model: A recurrent model, or a base that gets the memory `config`.
        documents: Tokenized documents; every token but each one's first is scored.
        config: The memory to add if `model` is a base.
        base: What to compare with; by default the base inside `model`. After fine-tuning in short windows that base has
            lost its long context: pass the original one, or a plain model fine-tuned alike.
        rows: Documents read in parallel in the memory's windows; fewer in longer windows, so that memory use is alike.
        bf16: Compute in bfloat16 on CUDA devices.
        progress: Called with the number of tokens scored; the total is `comparison_tokens(settings, documents)`.

    Returns:
        Rows for the settings of `comparison_settings`, with paired 95 % intervals of the memory's gain.

    Raises:
        UserError: `model` has no memory, or `base` has one.
    """
    recurrent, plain = _memory_and_base(model, config, base)
    found: dict[tuple[str, int, int], Evaluation] = {}
    table: list[ComparisonRow] = []
    for setting in comparison_settings(recurrent, documents, base=plain):
        reader = recurrent if setting.name == "memory" else plain
        key = ("memory" if setting.name == "memory" else "base", setting.window, setting.overlap)
        if key not in found:
            shrink = recurrent.recurrence.window / setting.window
            found[key] = evaluate_documents(
                reader,
                documents,
                window=setting.window,
                overlap=setting.overlap,
                rows=max(1, min(rows, int(rows * shrink))),
                windows_per_call=max(1, min(WINDOWS_PER_CALL, int(WINDOWS_PER_CALL * shrink))),
                bf16=bf16,
                progress=progress,
            )
        memory = table[0].evaluation if table else None
        gain = None if memory is None else relative_gain(found[key], memory, "perplexity_per_token")
        table.append(ComparisonRow(setting, found[key], gain))
    return table


def comparison_settings(
    model: PreTrainedModel,
    documents: Sequence[ScoredDocument],
    config: MechanismConfig | None = None,
    *,
    base: PreTrainedModel | None = None,
) -> list[ComparisonSetting]:
    """The memory's windows and those of the base that they are compared with; arguments as in `compare_with_base`.

    The full context is as long as the base has positions, or as the longest document. FLOPs of the base are averaged
    over documents, since a document shorter than a window costs less.
    """
    recurrent, plain = _memory_and_base(model, config, base)
    window, overlap = recurrent.recurrence.window, recurrent.recurrence.overlap
    inputs = [len(document.ids) - 1 for document in documents]
    longest = max([window, *inputs])
    positions = family_of(plain.config).positions(plain.config) or longest
    context = max(window, min(positions, longest))
    flops = full_flops_per_token(recurrent)
    windows = {
        "same_windows": (window, overlap),
        "full_context": (context, 0),
        "equal_flops_overlap": (window, matched_overlap(plain, flops, window, inputs)),
        "equal_flops_window": (matched_window(plain, flops, window, context, inputs), 0),
    }
    settings = [ComparisonSetting("memory", window, overlap, flops)]
    for name, (wide, shared) in windows.items():
        settings.append(ComparisonSetting(name, wide, shared, _mean_flops(plain, inputs, wide, shared)))
    return settings


def comparison_tokens(settings: Sequence[ComparisonSetting], documents: Sequence[ScoredDocument]) -> int:
    """The number of tokens that `compare_with_base` scores in all; equal settings are scored once."""
    different = {(setting.name == "memory", setting.window, setting.overlap) for setting in settings}
    return len(different) * sum(len(document.ids) - 1 for document in documents)


def matched_overlap(base: PreTrainedModel, flops: float, window: int, inputs: Sequence[int] = ()) -> int:
    """The smallest overlap at which plain windows cost at least `flops` per token, averaged over documents with
    `inputs` tokens, or in full windows."""
    return _smallest(lambda overlap: _mean_flops(base, inputs, window, overlap), flops, 0, window - 1)


def matched_window(base: PreTrainedModel, flops: float, shortest: int, longest: int, inputs: Sequence[int] = ()) -> int:
    """The shortest window, without overlap, that costs at least `flops` per token; `longest` if none does."""
    return _smallest(lambda window: _mean_flops(base, inputs, window, 0), flops, shortest, longest)


def _smallest(cost: Callable[[int], float], wanted: float, low: int, high: int) -> int:
    """The smallest number from `low` to `high` whose cost, which never falls, reaches `wanted`; else `high`."""
    rounding = 1 - 1e-9  # a memory that costs nothing extra is matched by no overlap
    return low + bisect_left(range(low, high), wanted * rounding, key=cost)


def _mean_flops(base: PreTrainedModel, inputs: Sequence[int], window: int, overlap: int) -> float:
    """The mean over documents; one that is shorter than a window costs as much as a window of its length."""
    if not inputs:
        return full_flops_per_token(base, window, overlap)
    lengths = [min(length, window) for length in inputs]
    costs = {length: full_flops_per_token(base, length, min(overlap, length - 1)) for length in set(lengths)}
    return float(np.average([costs[length] for length in lengths], weights=inputs))


def _memory_and_base(
    model: PreTrainedModel, config: MechanismConfig | None, base: PreTrainedModel | None
) -> tuple[RecurrentForCausalLM, PreTrainedModel]:
    recurrent: Any = model if config is None else add_recurrence(getattr(model, "base", model), config)
    if getattr(recurrent, "mechanism", None) is None:
        raise UserError("The model has no memory to compare: give a recurrent model, or a base and `config`.")
    recurrent = as_recurrent(recurrent, None, None)
    plain: Any = recurrent.base if base is None else base
    if getattr(plain, "mechanism", None) is not None:
        raise UserError("`base` must be a model without memory: give the base model, or one trained with 'none'.")
    return recurrent, plain.base if isinstance(plain, RecurrentForCausalLM) else plain


def training_differences(names: Sequence[str]) -> list[str]:
    """Why a gain between these models may not be the memory's alone, one sentence each.

    Args:
        names: Models as commands take them. Runs of `recurrify train` are recognised by their run records.
    """
    runs = {name: _run_of(name) for name in names}
    trained = {name: run for name, run in runs.items() if run is not None}
    found = []
    if trained and len(trained) < len(runs):
        others = [name for name in runs if name not in trained]
        found.append(
            f"{', '.join(trained)} {_was(trained)} fine-tuned by recurrify, {', '.join(others)} {_was(others)} not: "
            "the difference is not the memory's alone."
        )
    differences = [
        f"{setting} {' and '.join(values)}"
        for setting in SAME_TRAINING
        if len(values := dict.fromkeys(repr(run.get(setting)) for run in trained.values())) > 1
    ]
    for setting in ("window", "overlap"):
        values = dict.fromkeys(str(run.get("recurrence", {}).get(setting)) for run in trained.values())
        if len(values) > 1:
            differences.append(f"{setting} {' and '.join(values)}")
    if len({run.get("data_checksum") for run in trained.values()}) > 1:
        differences.append("different training data")
    if differences:
        listed = "; ".join(differences)
        found.append(f"These models were trained differently ({listed}): the difference is not the memory's alone.")
    return found


def _was(names: Mapping[str, Any] | Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"


def _run_of(name: str) -> dict[str, Any] | None:
    """The run record of a run's folder, or of the folder that a model is in."""
    for folder in (Path(name), Path(name).parent):
        try:
            run = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(run, dict) and "data_checksum" in run:
            return run
    return None
