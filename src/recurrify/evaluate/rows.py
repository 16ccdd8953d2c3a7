"""Table rows: a model scored at several overlaps, and its gain over another."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from recurrify.data.tokens import TokenizedDocument
from recurrify.evaluate.bootstrap import interval, relative_gain
from recurrify.evaluate.evaluation import Evaluation
from recurrify.evaluate.flops import full_flops_per_token, memory_cost, paper_flops_per_token
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.modeling.heads import RecurrentForCausalLM


def evaluation_rows(
    model: RecurrentForCausalLM,
    tokens: Sequence[TokenizedDocument],
    overlaps: Sequence[int],
    progress: Callable[[int], None] | None = None,
    rows: int = 32,
    bf16: bool = False,
) -> tuple[list[dict[str, Any]], list[Evaluation]]:
    """One table row per overlap, all scoring the same tokens, and the evaluations."""
    table, evaluations = [], []
    for overlap in overlaps:
        found = evaluate_documents(model, tokens, overlap=overlap, rows=rows, bf16=bf16, progress=progress)
        evaluations.append(found)
        table.append(
            {
                "window": found.window,
                "overlap": overlap,
                "perplexity_per_word": found.perplexity_per_word,
                "perplexity_per_word_interval": interval(found),
                "perplexity_per_token": found.perplexity_per_token,
                "perplexity_per_token_interval": interval(found, "perplexity_per_token"),
                "bits_per_character": found.bits_per_character,
                "bits_per_byte": found.bits_per_byte,
                "flops_per_token": paper_flops_per_token(model, overlap=overlap),
                "full_flops_per_token": full_flops_per_token(model, overlap=overlap),
                "memory": memory_cost(model, overlap=overlap)._asdict(),
            }
        )
    return table, evaluations


def gain_row(plain: Sequence[Evaluation], recurrent: Sequence[Evaluation], unit: str = "word") -> dict[str, Any]:
    """How much lower the recurrent model's perplexity is, with its interval; same seeds in the same order."""
    gain = relative_gain(plain, recurrent, metric=f"perplexity_per_{unit}", paired_seeds=True)
    return {"overlap": plain[0].overlap, "unit": unit, "seeds": len(recurrent), **asdict(gain)}
