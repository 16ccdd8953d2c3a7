"""Table rows: a model scored at several overlaps, and its gain over another."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from recurrify.data.tokens import TokenizedDocument
from recurrify.evaluate.bootstrap import interval, relative_gain
from recurrify.evaluate.evaluation import METRICS, Evaluation
from recurrify.evaluate.flops import full_flops_per_token, memory_cost, paper_flops_per_token
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.modeling.heads import RecurrentForCausalLM


def metrics_row(evaluation: Evaluation) -> dict[str, Any]:
    """Every metric with its 95 % interval over documents."""
    return {
        **{name: evaluation.metric(name) for name in METRICS},
        **{f"{name}_interval": interval(evaluation, name) for name in METRICS},
    }


def evaluation_rows(
    model: RecurrentForCausalLM,
    tokens: Sequence[TokenizedDocument],
    overlaps: Sequence[int],
    progress: Callable[[int], None] | None = None,
    rows: int = 32,
    bf16: bool = False,
    shared: bool = False,
) -> tuple[list[dict[str, Any]], list[Evaluation]]:
    """One table row per overlap, all scoring the same tokens, and the evaluations; `shared` among processes."""
    table, evaluations = [], []
    for overlap in overlaps:
        how: dict[str, Any] = {"rows": rows, "bf16": bf16, "progress": progress, "shared": shared}
        found = evaluate_documents(model, tokens, overlap=overlap, **how)
        evaluations.append(found)
        table.append(
            {
                "window": found.window,
                "overlap": overlap,
                **metrics_row(found),
                "flops_per_token": paper_flops_per_token(model, overlap=overlap),
                "full_flops_per_token": full_flops_per_token(model, overlap=overlap),
                "memory": memory_cost(model, overlap=overlap)._asdict(),
            }
        )
    return table, evaluations


def gain_row(plain: Sequence[Evaluation], recurrent: Sequence[Evaluation], unit: str = "word") -> dict[str, Any]:
    """How much lower the recurrent model's loss by `unit` is, with its interval; same seeds in the same order.

    It is the drop of perplexity per token or per word, or of bits per character.
    """
    metric = "bits_per_character" if unit == "character" else f"perplexity_per_{unit}"
    gain = relative_gain(plain, recurrent, metric=metric, paired_seeds=True)
    return {"overlap": plain[0].overlap, "unit": unit, "seeds": len(recurrent), **asdict(gain)}
