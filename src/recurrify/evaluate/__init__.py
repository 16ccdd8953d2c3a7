"""How good a model is, how sure that is, and what it costs."""

from recurrify.evaluate.bootstrap import Gain, interval, relative_gain
from recurrify.evaluate.evaluation import METRICS, Evaluation, ScoredDocument
from recurrify.evaluate.flops import full_flops_per_token, paper_flops_per_token
from recurrify.evaluate.perplexity import evaluate_documents

__all__ = [
    "METRICS",
    "Evaluation",
    "Gain",
    "ScoredDocument",
    "evaluate_documents",
    "full_flops_per_token",
    "interval",
    "paper_flops_per_token",
    "relative_gain",
]
