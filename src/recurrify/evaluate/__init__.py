"""How good a model is, how sure that is, and what it costs."""

from recurrify.evaluate.answers import Answer, AnswerScores, official_predictions, predict_answers, score_answers
from recurrify.evaluate.bootstrap import Gain, gain_beyond, interval, relative_gain
from recurrify.evaluate.classification import classification_metrics
from recurrify.evaluate.evaluation import METRICS, Evaluation, ScoredDocument
from recurrify.evaluate.flops import MemoryCost, full_flops_per_token, memory_cost, paper_flops_per_token
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.evaluate.prediction import Predictions, collect_predictions, predict_documents, prediction_metrics

__all__ = [
    "METRICS",
    "Answer",
    "AnswerScores",
    "Evaluation",
    "Gain",
    "MemoryCost",
    "Predictions",
    "ScoredDocument",
    "classification_metrics",
    "collect_predictions",
    "evaluate_documents",
    "full_flops_per_token",
    "gain_beyond",
    "interval",
    "memory_cost",
    "official_predictions",
    "paper_flops_per_token",
    "predict_answers",
    "predict_documents",
    "prediction_metrics",
    "relative_gain",
    "score_answers",
]
