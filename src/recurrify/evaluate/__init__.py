"""How good a model is, how certain that is, and what it costs."""

from recurrify.evaluate.advise import Advice, Reading, advise, candidate_memories, measure_readings
from recurrify.evaluate.answers import (
    Answer,
    AnswerScores,
    mean_interval,
    official_predictions,
    predict_answers,
    score_answers,
)
from recurrify.evaluate.bootstrap import Gain, interval, relative_gain
from recurrify.evaluate.classification import classification_metrics, share_interval
from recurrify.evaluate.comparison import (
    ComparisonRow,
    ComparisonSetting,
    compare_with_base,
    comparison_settings,
    comparison_tokens,
    matched_overlap,
    matched_window,
    training_differences,
)
from recurrify.evaluate.evaluation import METRICS, Evaluation, Tally
from recurrify.evaluate.flops import MemoryCost, full_flops_per_token, memory_cost, paper_flops_per_token
from recurrify.evaluate.inspection import TextChoice, gradient_profile, inspect_text, slot_attention
from recurrify.evaluate.perplexity import (
    BatchRow,
    StoppedEvaluation,
    as_recurrent,
    batch_of,
    check_counts,
    check_documents,
    check_finite,
    check_ids,
    evaluate_documents,
    evaluation_mode,
    read_in_parallel,
    recurrence_settings,
    scoring,
)
from recurrify.evaluate.probe_run import TextProbing, probe_model, task_result
from recurrify.evaluate.probing import ProbeScore, read_windows, score_of, score_texts
from recurrify.evaluate.rows import evaluation_rows, gain_row

__all__ = [
    "METRICS",
    "Advice",
    "Answer",
    "AnswerScores",
    "BatchRow",
    "ComparisonRow",
    "ComparisonSetting",
    "Evaluation",
    "Gain",
    "MemoryCost",
    "ProbeScore",
    "Reading",
    "StoppedEvaluation",
    "Tally",
    "TextChoice",
    "TextProbing",
    "advise",
    "as_recurrent",
    "batch_of",
    "candidate_memories",
    "check_counts",
    "check_documents",
    "check_finite",
    "check_ids",
    "classification_metrics",
    "compare_with_base",
    "comparison_settings",
    "comparison_tokens",
    "evaluate_documents",
    "evaluation_mode",
    "evaluation_rows",
    "full_flops_per_token",
    "gain_row",
    "gradient_profile",
    "inspect_text",
    "interval",
    "matched_overlap",
    "matched_window",
    "mean_interval",
    "measure_readings",
    "memory_cost",
    "official_predictions",
    "paper_flops_per_token",
    "predict_answers",
    "probe_model",
    "read_in_parallel",
    "read_windows",
    "recurrence_settings",
    "relative_gain",
    "score_answers",
    "score_of",
    "score_texts",
    "scoring",
    "share_interval",
    "slot_attention",
    "task_result",
    "training_differences",
]
