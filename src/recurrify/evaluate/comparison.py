"""A model with memory compared with its base, in the ways that a sceptic would compare them.

The base reads the same tokens in the memory's own windows; in its full context; and, for as many FLOPs per token as the
memory takes, in overlapping windows and in longer ones.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from recurrify.data.tokens import TokenizedDocument, text_sizes
from recurrify.errors import UserError
from recurrify.evaluate.bootstrap import Gain, relative_gain
from recurrify.evaluate.evaluation import Evaluation, Tally
from recurrify.evaluate.flops import full_flops_per_token
from recurrify.evaluate.perplexity import as_recurrent, evaluate_documents
from recurrify.evaluate.rows import metrics_row
from recurrify.families import family_of
from recurrify.mechanisms.config import MechanismConfig
from recurrify.modeling.heads import RecurrentForCausalLM, add_recurrence
from recurrify.records import RUN_FILE

SAME_PRICE = 1.05
"""Readings that cost up to this many times as many FLOPs as the memory are held against it first."""
SAME_TRAINING = (
    *("model", "epochs", "max_tokens", "batch", "accumulate", "learning_rate", "schedule", "warmup_steps", "patience"),
    *("windows", "freeze_base", "seed"),
)
"""Settings of `recurrify train` that must be equal for two models to differ in their memory alone."""


class ComparisonSetting(NamedTuple):
    """How the memory or the base reads the documents."""

    role: str
    """"memory"; or of the base: "windows", "overlap", "longer window", and "full context", or "whole text" if the base
    has room for more."""
    window: int
    overlap: int
    flops_per_token: float

    @property
    def label(self) -> str:
        """The setting in words."""
        if self.role == "whole text":
            return f"whole text of up to {self.window:,}"
        shared = f", overlap {self.overlap:,}" if self.overlap else ""
        kind = {"memory": "memory, windows", "full context": "full context"}.get(self.role, "plain windows")
        return f"{kind} of {self.window:,}{shared}"


@dataclass(frozen=True)
class ComparisonRow:
    """One line of the comparison."""

    setting: ComparisonSetting
    evaluation: Evaluation
    gain: Gain | None
    """How much lower the memory's perplexity per token is than this row's; None for the memory itself."""

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON types, as tables and pages show it."""
        role, window, overlap, flops = self.setting
        about = {"role": role, "model": role, "label": self.setting.label, "window": window, "overlap": overlap}
        return {**about, "full_flops_per_token": flops, **metrics_row(self.evaluation)}


def distinct_settings(settings: Sequence[ComparisonSetting]) -> list[ComparisonSetting]:
    """Each reading once: for short texts the longer window of equal cost may be the full context as well."""
    found: dict[tuple[bool, int, int], ComparisonSetting] = {}
    for setting in settings:
        if found.setdefault(_reading(setting), setting).role == "longer window":
            found[_reading(setting)] = setting  # the full context says more
    return list(found.values())


def distinct_rows(table: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """The rows of `distinct_settings`."""
    kept = set(distinct_settings([row.setting for row in table]))
    return [row for row in table if row.setting in kept]


def gain_rows(table: Sequence[ComparisonRow]) -> list[dict[str, Any]]:
    """The memory's gain over each reading of the base in JSON types; the strongest of the same price comes first."""
    if not table:
        return []
    memory = table[0].setting
    first = strongest_rival(table)
    return [
        {
            "model": memory.role,
            "label": memory.label,
            "against": row.setting.role,
            "against_label": row.setting.label,
            "unit": "token",
            **asdict(row.gain),
        }
        for row in sorted(distinct_rows(table)[1:], key=lambda row: _reading(row.setting) != _reading(first.setting))
        if row.gain is not None
    ]


def strongest_rival(table: Sequence[ComparisonRow]) -> ComparisonRow:
    """The best reading of the base that costs about as many FLOPs as the memory, or fewer."""
    price = SAME_PRICE * table[0].setting.flops_per_token
    affordable = [row for row in table[1:] if row.setting.flops_per_token <= price]
    return min(affordable or table[1:], key=lambda row: row.evaluation.perplexity_per_token)


def compare_with_base(
    model: PreTrainedModel,
    documents: Sequence[TokenizedDocument],
    config: MechanismConfig | None = None,
    *,
    base: PreTrainedModel | None = None,
    rows: int = 8,
    bf16: bool = False,
    progress: Callable[[int], None] | None = None,
    scored: Sequence[tuple[ComparisonSetting, Evaluation]] = (),
    shared: bool = False,
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
        scored: Evaluations of these documents that exist already.
        shared: Divide the documents among the processes of torch.distributed; all of them call this.

    Returns:
        Rows for the settings of `comparison_settings`, with paired 95 % intervals of the memory's gain.

    Raises:
        UserError: `model` has no memory, or `base` has one.
    """
    recurrent, plain = _memory_and_base(model, config, base)
    settings = comparison_settings(recurrent, documents, base=plain)
    found = {_reading(setting): evaluation for setting, evaluation in scored}
    for setting in settings:
        if _reading(setting) not in found:
            found[_reading(setting)] = evaluate_documents(
                recurrent if setting.role == "memory" else plain,
                documents,
                window=setting.window,
                overlap=setting.overlap,
                rows=max(1, rows * settings[0].window // setting.window),
                bf16=bf16,
                progress=progress,
                shared=shared,
            )
    return comparison_rows(settings, [found[_reading(setting)] for setting in settings])


def comparison_rows(settings: Sequence[ComparisonSetting], found: Sequence[Evaluation]) -> list[ComparisonRow]:
    """The evaluations of the settings, the memory's first, with its gain over each of the others."""
    gains = [None, *(relative_gain(one, found[0], "perplexity_per_token") for one in found[1:])]
    return [ComparisonRow(*row) for row in zip(settings, found, gains, strict=True)]


def evaluation_of_parts(losses: np.ndarray, pieces: Sequence[str], length: int) -> Evaluation:
    """A single text as documents of `length` tokens each, so that intervals can resample them.

    Args:
        losses: (N − 1,): of predicting each token of the text but the first.
        pieces: (N,): the part of the text that each token adds.
        length: Tokens of a part.
    """
    starts = range(1, len(pieces), length)
    texts = ["".join(pieces[start : start + length]) for start in starts]
    parts = [
        TokenizedDocument(f"tokens from {start}", losses[:0], *text_sizes(text))
        for start, text in zip(starts, texts, strict=True)
    ]
    tally = Tally(parts, length, 0)
    for number, start in enumerate(starts):
        tally.add(number, 0, losses[start - 1 : start - 1 + length])
    return tally.evaluation()


def _reading(setting: ComparisonSetting) -> tuple[bool, int, int]:
    """What is read: settings that differ in their names alone are scored once."""
    return setting.role == "memory", setting.window, setting.overlap


def comparison_settings(
    model: PreTrainedModel,
    documents: Sequence[TokenizedDocument],
    config: MechanismConfig | None = None,
    *,
    base: PreTrainedModel | None = None,
) -> list[ComparisonSetting]:
    """The memory's windows and those of the base that they are compared with; arguments as in `compare_with_base`.

    The last is the base's full context, or the whole text where the longest document is shorter. FLOPs of the base are
    averaged over documents, since a document shorter than a window costs less.
    """
    recurrent, plain = _memory_and_base(model, config, base)
    window, overlap = recurrent.recurrence.window, recurrent.recurrence.overlap
    inputs = [len(document.ids) - 1 for document in documents]
    longest = max([window, *inputs])
    positions = family_of(plain.config).positions(plain.config)
    widest, context = "whole text", longest
    if positions is not None and positions <= longest:
        widest, context = "full context", max(window, positions)
    flops = full_flops_per_token(recurrent)
    windows = {
        "windows": (window, overlap),
        "overlap": (window, matched_overlap(plain, flops, window, inputs)),
        "longer window": (matched_window(plain, flops, window, context, inputs), 0),
        widest: (context, 0),
    }
    settings = [ComparisonSetting("memory", window, overlap, flops)]
    for role, (wide, shared) in windows.items():
        settings.append(ComparisonSetting(role, wide, shared, _mean_flops(plain, inputs, wide, shared)))
    return settings


def comparison_tokens(settings: Sequence[ComparisonSetting], documents: Sequence[TokenizedDocument]) -> int:
    """The number of tokens that `compare_with_base` scores in all; equal settings are scored once."""
    different = set(map(_reading, settings))
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
