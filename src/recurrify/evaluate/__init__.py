"""How good a model is, how sure that is, and what it costs."""

from recurrify.evaluate.answers import (
    Answer,
    AnswerScores,
    mean_interval,
    official_predictions,
    predict_answers,
    score_answers,
)
from recurrify.evaluate.bootstrap import Gain, gain_beyond, interval, relative_gain
from recurrify.evaluate.classification import classification_metrics
from recurrify.evaluate.evaluation import METRICS, Evaluation, ScoredDocument, Tally
from recurrify.evaluate.flops import MemoryCost, full_flops_per_token, memory_cost, paper_flops_per_token
from recurrify.evaluate.perplexity import (
    NamedTokens,
    as_recurrent,
    check_counts,
    check_documents,
    check_ids,
    evaluate_documents,
    evaluation_mode,
    recurrence_settings,
)
from recurrify.evaluate.prediction import Predictions, collect_predictions, predict_documents, prediction_metrics

__all__ = [
    "METRICS",
    "Answer",
    "AnswerScores",
    "Evaluation",
    "Gain",
    "MemoryCost",
    "NamedTokens",
    "Predictions",
    "ScoredDocument",
    "Tally",
    "as_recurrent",
    "check_counts",
    "check_documents",
    "check_ids",
    "classification_metrics",
    "collect_predictions",
    "evaluate_documents",
    "evaluation_mode",
    "full_flops_per_token",
    "gain_beyond",
    "interval",
    "mean_interval",
    "memory_cost",
    "official_predictions",
    "paper_flops_per_token",
    "predict_answers",
    "predict_documents",
    "prediction_metrics",
    "recurrence_settings",
    "relative_gain",
    "score_answers",
]
