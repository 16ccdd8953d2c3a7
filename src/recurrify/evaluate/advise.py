"""Which reading of a text is the best buy: longer windows, overlap, or a memory that needs no training."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from recurrify.console import large
from recurrify.data.records import Document
from recurrify.data.tokens import TokenizedDocument, text_sizes, tokenize_documents
from recurrify.errors import UserError
from recurrify.evaluate.bootstrap import Gain, relative_gain
from recurrify.evaluate.comparison import (
    ComparisonRow,
    ComparisonSetting,
    compare_with_base,
    comparison_settings,
    comparison_tokens,
    distinct_settings,
    strongest_rival,
)
from recurrify.evaluate.flops import memory_cost
from recurrify.families import family_of, key_width
from recurrify.mechanisms.choose import best_settings
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.registry import recurrence_config
from recurrify.modeling.heads import add_recurrence

LEAST_TOKENS = 32
"""Of a piece: windows of an eighth of it must be windows."""

CHARACTERS = 32
"""Of a text that are read for each token of the sample: more than tokens have."""


class Cost(NamedTuple):
    """What a way to read takes."""

    flops: float
    """Per token."""
    state_bytes: int
    """Keys and values of a window, and the memory."""


@dataclass(frozen=True)
class Reading:
    """One way to read the text, and what it costs."""

    row: ComparisonRow
    cost: Cost

    @property
    def perplexity(self) -> float:
        return self.row.evaluation.perplexity_per_token

    def to_dict(self) -> dict[str, Any]:
        return {**self.row.to_dict(), "state_bytes": self.cost.state_bytes}


@dataclass(frozen=True)
class Advice:
    """The best reading within the budget."""

    best: Reading
    rival: Reading | None
    """The best reading of the other kind within the budget: without a memory if `best` has one, and with one if not."""
    gain: Gain | None
    """How much lower the perplexity per token of the best reading is."""
    sentences: list[str]

    @property
    def memory_pays(self) -> bool:
        return self.best.row.setting.role == "memory"


def sample_pieces(documents: Sequence[Document], tokenizer: Any, pieces: int, tokens: int) -> list[TokenizedDocument]:
    """A few pieces of `tokens` tokens: the beginnings of the longest documents, then what follows them."""
    found: list[TokenizedDocument] = []
    enough = pieces * tokens * CHARACTERS
    starts = [Document(document.name, document.text[:enough]) for document in documents]
    whole = sorted(tokenize_documents(starts, tokenizer), key=lambda document: -len(document.ids))
    for start in range(0, len(whole[0].ids), tokens):
        for document in whole[: pieces - len(found)]:
            ids = document.ids[start : start + tokens]
            if len(ids) >= LEAST_TOKENS:
                sizes = text_sizes(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
                found.append(TokenizedDocument(f"{document.name} from token {start}", ids, *sizes))
    if not found:
        raise UserError(f"No document has {LEAST_TOKENS} tokens, the fewest that can be compared: give longer texts.")
    return found


def candidate_memories(base: PreTrainedModel, documents: Sequence[TokenizedDocument]) -> list[MechanismConfig]:
    """The memory that works best for this base, in two windows that are short for its context."""
    longest = max(len(document.ids) for document in documents) - 1
    context = min(family_of(base.config).positions(base.config) or longest, longest)
    windows = (max(context // 8, 2), max(context // 3, 2))
    return [recurrence_config(best_settings(base.config, {"window": window})) for window in windows]


def advice_tokens(
    base: PreTrainedModel, documents: Sequence[TokenizedDocument], configs: Sequence[MechanismConfig]
) -> int:
    """The number of tokens that `measure_readings` scores."""
    settings = [setting for config in configs for setting in comparison_settings(base, documents, config)]
    return comparison_tokens(settings, documents)


def reading_costs(
    base: PreTrainedModel, documents: Sequence[TokenizedDocument], configs: Sequence[MechanismConfig]
) -> dict[ComparisonSetting, Cost]:
    """What each of the readings takes, without reading anything."""
    found = {}
    for config in configs:
        memory = memory_cost(add_recurrence(base, config)).state_floats * base.dtype.itemsize
        for setting in comparison_settings(base, documents, config):
            own = memory if setting.role == "memory" else 0
            found[setting] = Cost(setting.flops_per_token, _cache_bytes(base, setting.window) + own)
    return found


def check_budget(costs: Collection[Cost], flops: float | None, state_bytes: float | None) -> None:
    """Raise `UserError` if no reading takes at most these FLOPs per token and bytes of state."""
    if not any(_affordable(one, flops, state_bytes) for one in costs):
        raise UserError(
            f"No reading is within this budget: the cheapest takes {large(min(costs).flops)} FLOPs per token, the "
            f"smallest {min(one.state_bytes for one in costs) / 2**20:.3g} MiB; raise the budget."
        )


def _affordable(cost: Cost, flops: float | None, state_bytes: float | None) -> bool:
    return (flops is None or cost.flops <= flops) and (state_bytes is None or cost.state_bytes <= state_bytes)


def measure_readings(
    base: PreTrainedModel,
    documents: Sequence[TokenizedDocument],
    configs: Sequence[MechanismConfig],
    *,
    rows: int = 8,
    bf16: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[Reading]:
    """Every memory, and the base in the windows that `compare_with_base` compares it with; the cheapest first."""
    known: list[Any] = []
    found: dict[ComparisonSetting, Reading] = {}
    costs = reading_costs(base, documents, configs)
    for config in configs:
        table = compare_with_base(base, documents, config, rows=rows, bf16=bf16, progress=progress, scored=known)
        known += [(row.setting, row.evaluation) for row in table[1:]]
        found |= {row.setting: Reading(row, costs[row.setting]) for row in table}
    return sorted((found[setting] for setting in distinct_settings(list(found))), key=lambda reading: reading.cost)


def advise(readings: Sequence[Reading], flops: float | None = None, state_bytes: float | None = None) -> Advice:
    """The best of the readings that take at most these FLOPs per token and bytes of state.

    Raises:
        UserError: No reading is within the budget.
    """
    check_budget([one.cost for one in readings], flops, state_bytes)
    within = [one for one in readings if _affordable(one.cost, flops, state_bytes)]
    best = min(within, key=lambda one: one.perplexity)
    others = [one for one in within if (one.row.setting.role == "memory") != (best.row.setting.role == "memory")]
    rival = min(others, key=lambda one: one.perplexity, default=None)
    gain = None if rival is None else _gain(rival, best)
    if best.row.setting.role == "memory" and rival is not None and gain is not None and gain.within_noise:
        # A memory must earn its place.
        best, rival, gain = rival, best, _gain(best, rival)
    limited = " within this budget" if flops is not None or state_bytes is not None else ""
    return Advice(best, rival, gain, list(_sentences(best, rival, gain, readings, limited)))


def _sentences(
    best: Reading, rival: Reading | None, gain: Gain | None, readings: Sequence[Reading], limited: str
) -> Iterator[str]:
    label, cost = best.row.setting.label, f"{best.perplexity:.4g} per token at {large(best.cost.flops)} FLOPs per token"
    if best.row.setting.role == "memory":
        yield f"Use the {label}{limited}: perplexity {cost}."
        if rival is not None:
            yield f"That is {gain} than the best without a memory, {rival.row.setting.label}."
        return
    cheaper = list(_worth_their_price(best, readings))
    if cheaper:
        yield f"Use {label}{limited} if you can afford it: perplexity {cost}."
    else:
        yield f"No memory is worth it{limited}: {label} is the best buy, perplexity {cost}."
    if gain is not None and rival is not None:
        memory = f"the best memory, in windows of {rival.row.setting.window:,}"
        if not gain.within_noise:
            yield f"That is {gain} than {memory}."
        else:
            measured = _gain(best, rival)
            yield (
                f"With {memory}, perplexity was {measured}. That may be chance, so the simpler reading is recommended."
            )
    yield from cheaper


def _worth_their_price(best: Reading, readings: Sequence[Reading]) -> Iterator[str]:
    """Memories that cost less than the best reading and are better than all plain readings of their own price."""
    for one in readings:
        if one.row.setting.role == "memory" and one.cost.flops < best.cost.flops:
            plain = [other.row for other in readings if other.row.setting.role != "memory"]
            against = strongest_rival([one.row, *plain])
            at_its_price = relative_gain(against.evaluation, one.row.evaluation, "perplexity_per_token")
            if at_its_price.relative_gain > 0 and not at_its_price.within_noise:
                yield (
                    f"For at most {large(one.cost.flops)} FLOPs per token, use the {one.row.setting.label}: "
                    f"{at_its_price} than {against.setting.label}."
                )


def _gain(rival: Reading, best: Reading) -> Gain:
    return relative_gain(rival.row.evaluation, best.row.evaluation, "perplexity_per_token")


def _cache_bytes(base: PreTrainedModel, positions: int) -> int:
    """Keys and values of all layers."""
    config = base.config
    return int(2 * config.num_hidden_layers * key_width(config) * positions * base.dtype.itemsize)
