"""A made-up folder of experiments of the shape the real one has; no number of ours in it was measured."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurrify.results import save_result

Facts = dict[str, Any]
WINDOW = 300
SEEDS = (0, 1, 2)
BASE_FLOPS = 1.75e8

PUBLISHED = {  # overlap: plain valid and test, recurrent valid and test
    0: (172.25, 147.71, 155.27, 133.02),
    5: (165.93, 142.30, 150.00, 128.78),
    10: (162.66, 139.49, 147.53, 127.05),
    30: (156.21, 134.30, 142.35, 122.22),
    50: (152.64, 131.25, 140.10, 119.93),
    75: (149.54, 128.46, None, None),
    100: (147.05, 126.51, None, None),
    150: (143.62, 123.53, None, None),
    200: (141.14, 121.40, None, None),
}
LABELS = {
    "plain": "GPT-2 architecture, plain windows",
    "carry": "one pooled vector carried, inserted at layer 2",
    "best": "16 tail slots that live on to the top layer",
}
GAINS = {"plain": 0.0, "carry": 0.052, "best": 0.083}


def score(perplexity: float, seeds: Sequence[int], files: list[str], length: int = WINDOW) -> Facts:
    loss = math.log(perplexity) / 1.4
    return {
        "perplexity_per_word": perplexity,
        "spread": 0.4 if len(seeds) > 1 else None,
        "per_seed": [perplexity + 0.4 * (seed - 1) for seed in seeds],
        "interval": [perplexity * 0.975, perplexity * 1.026],
        "perplexity_per_token": math.exp(loss),
        "bits_per_character": loss / 3.1,
        "bits_per_byte": loss / 3.15,
        "loss_by_position": [loss + 2 / (1 + place) ** 0.7 + 0.02 * math.sin(9 * place) for place in range(length)],
        "loss_by_window": [loss + 0.15 / (1 + index) + 0.03 * math.sin(5 * index) for index in range(50)],
        "files": files,
    }


def scored_row(
    kind: str, perplexity: float, *, window: int = WINDOW, overlap: int = 0, seeds: Sequence[int] = SEEDS
) -> Facts:
    """A row of a table without published numbers; `perplexity` is that of the test split."""
    name = f"{kind}-w{window}-o{overlap}"
    gain = GAINS[kind] - 0.0005 * overlap
    made = {"relative_gain": gain, "interval": [gain - 0.006, gain + 0.006], "within_noise": False, "seeds": len(seeds)}
    flops = BASE_FLOPS * (0.8 + 0.2 * window / WINDOW) * window / (window - overlap)
    return {
        "row": f"{kind}/w{window}/o{overlap}",
        "kind": kind,
        "label": LABELS[kind],
        "window": window,
        "overlap": overlap,
        "published": None,
        "published_gain": None,
        "seeds": list(seeds),
        "scores": {
            split: score(value, seeds, [f"scores/{name}-s{seed}-{split}.json" for seed in seeds], window)
            for split, value in (("valid", perplexity * 1.1), ("test", perplexity))
        },
        "flops_per_token": flops,
        "full_flops_per_token": flops * {"plain": 1.3, "carry": 1.31, "best": 1.42}[kind],
        "gain": None if kind == "plain" else {"valid": made, "test": made},
        "runs": [f"novels-{name}-s{seed}" for seed in seeds],
    }


def books_rows() -> list[Facts]:
    """Table 2: at overlap 0 plain 138.4 and recurrent 5.2 % less."""
    rows = []
    for overlap, (plain_valid, plain_test, valid, test) in PUBLISHED.items():
        ours = 138.4 - 1.9 * math.sqrt(overlap)
        row = scored_row("plain", ours, overlap=overlap)
        rows.append(row | {"published": {"valid": plain_valid, "test": plain_test}})
        if valid is not None and test is not None:
            for kind in ("carry", "best"):
                row = scored_row(kind, ours * (1 - GAINS[kind] + 0.0005 * overlap), overlap=overlap)
                if kind == "carry":
                    row["published"] = {"valid": valid, "test": test}
                    row["published_gain"] = {"valid": 1 - valid / plain_valid, "test": 1 - test / plain_test}
                rows.append(row)
    return rows


def window_rows(overlaps: Sequence[int] = (0,)) -> list[Facts]:
    rows = []
    for window in (200, 300, 400, 500, 600):
        for overlap in overlaps:
            rows.append(
                scored_row("plain", 150 - window / 25 - 1.9 * math.sqrt(overlap), window=window, overlap=overlap)
            )
        for kind in ("carry", "best"):
            gain = GAINS[kind] * 300 / window
            row = scored_row(kind, (150 - window / 25) * (1 - gain), window=window)
            for made in row["gain"].values():
                made.update(relative_gain=gain, interval=[gain - 0.004, gain + 0.004])
            rows.append(row)
    return rows


def experiment(name: str, layout: str, title: str, rows: list[Facts], size: str = "small", **more: Any) -> Facts:
    return {
        "kind": "experiment",
        "name": name,
        "size": size,
        "title": title,
        "source": f"Adding Recurrence to Pretrained Transformers, {name}",
        "differences": ["a 34 M-parameter base pretrained here instead of GPT-2 small", "novels instead of PG-19"],
        "hyperparameters": [
            {"name": "window", "published": "300", "ours": "300"},
            {"name": "windows in one sequence", "published": "20", "ours": "8"},
            {"name": "batch", "published": None, "ours": "16"},
        ],
        "layout": layout,
        "rows": rows,
        "missing": [],
        "provenance": {
            "git": {"commit": "0f3a" * 10, "dirty": True},
            "machine": {"gpu": None, "cpu": "Example CPU"},
            "date_utc": "2025-01-02T03:04:05+00:00",
        },
    } | more


def _topics() -> list[Facts]:
    published = {
        "plain": {"divergence": 0.5951, "closer_share": None},
        "carry": {"divergence": 0.5331, "closer_share": 0.6},
    }
    return [
        {
            "kind": kind,
            "label": LABELS[kind],
            "divergence": divergence,
            "divergence_nats": divergence * math.log(2),
            "interval": [divergence - 0.006, divergence + 0.006],
            "closer_share": share,
            "ties": None if share is None else 214,
            "p_value": None if share is None else 1e-9,
            "contexts": 2000,
            "published": published.get(kind),
            "runs": [f"novels-{kind}-w300-o0-s0"],
        }
        for kind, divergence, share in (("plain", 0.5903, None), ("carry", 0.5512, 0.583), ("best", 0.5307, 0.627))
    ]


def _continuations() -> list[Facts]:
    context = (
        "The river had risen in the night, and the ferryman would not put out. “There is no hurry,” said the elder of "
        "the two aunts, “for the letter will keep, and so will he.”\nThey sat down upon the wet stones and"
    )
    texts = {
        "plain": " of the house. He was a man of the world, and he had been a soldier in the wars.",
        "carry": " waited for the boat. The two women did not speak, and the water went by them, brown and loud.",
        "best": " watched the ferry swing upon its rope. “He will keep,” said the younger, <laughing>.",
    }
    return [{"context": context, "topic": topic, "continuations": texts} for topic in ("rivers", "letters", None)]


def _prediction() -> list[Facts]:
    metrics = {
        "accuracy": 0.3127,
        "top5_accuracy": 0.5288,
        "precision_macro": 0.201,
        "recall_macro": 0.177,
        "f1_macro": 0.181,
        "precision_weighted": 0.29,
        "recall_weighted": 0.31,
        "f1_weighted": 0.295,
        "auc_roc": 0.921,
    }
    row = {"tokens": 50_000, "classes": 100, "metrics": metrics}
    return [row | {"kind": kind, "label": LABELS[kind], "runs": [f"novels-{kind}-w300-o0-s0"]} for kind in LABELS]


def _cost() -> list[Facts]:
    def measured(measure: str, unit: str, plain: float, recurrent: float, better: str, published: str | None) -> Facts:
        ratio = recurrent / plain
        named = {"measure": measure, "unit": unit, "setting": "16 × 20 windows of 300", "better": better}
        spread = [ratio - 0.02, ratio + 0.03]
        return named | {
            "plain": plain,
            "recurrent": recurrent,
            "ratio": ratio,
            "spread": spread,
            "published": published,
        }

    hours = "24 h became close to 30 h (guessed)"
    return [
        measured("training tokens per second", "tokens/s", 410_000, 352_000, "higher", hours),
        measured("evaluation tokens per second", "tokens/s", 1_210_000, 1_180_000, "higher", None),
        measured("peak memory in training", "bytes", 2.1e10, 2.6e10, "lower", None),
        measured("tokens to the plain model's loss", "tokens", 5.2e7, 3.9e7, "lower", None),
    ]


def _learning_rates() -> list[Facts]:
    return [
        {
            "kind": kind,
            "learning_rate": rate,
            "valid_loss": loss,
            "valid_perplexity_per_word": math.exp(1.4 * loss),
            "chosen": rate == 3e-4,
            "runs": [],
        }
        for kind in ("plain", "carry")
        for rate, loss in ((1e-4, 3.97), (3e-4, 3.912), (1e-3, 3.95))
    ]


def length_rows() -> list[Facts]:
    """Of two rules: an LSTM that knows both at any length, a transformer that knows them up to the training length."""
    rows = []
    for task, chance in (("parity", 0.5), ("dyck", 0.375)):
        for arch in ("transformer", "lstm"):
            for length in (20, 40, 120, 200, 400):
                accuracy = 0.998 if arch == "lstm" else 0.97 if length <= 40 else chance + 4 / length
                rows.append(
                    {
                        "task": task,
                        "arch": arch,
                        "length": length,
                        "training_length": 40,
                        "accuracy": accuracy,
                        "spread": 0.012,
                        "per_seed": [accuracy - 0.012, accuracy, accuracy + 0.012],
                        "seeds": list(SEEDS),
                        "answers": 1024,
                        "chance": chance,
                        "learning_rate": 1e-3,
                        "parameters": 149_572,
                        "reads": "whole sequences",
                        "files": [f"lengths/{task}-{arch}-lr0.001-s{seed}.json" for seed in SEEDS],
                    }
                )
    return rows


def growth_rows() -> list[Facts]:
    """Times of powers and nothing else; memory for one of the parts alone."""
    rows = []
    for part, theory, powers in (
        ("self-attention, fused", "O(T²·D)", {"T": 2.0, "D": 1.0}),
        ("RSA scan", "O(T·D)", {"T": 1.0, "D": 1.0}),
    ):
        for axis, fixed in (("T", {"D": 512}), ("D", {"T": 4096})):
            points = []
            for size in (512, 1024, 2048, 4096):
                shape = {axis: size, **fixed}
                seconds = 1e-12 * shape["T"] ** powers["T"] * shape["D"] ** powers["D"]
                memory = 8 * shape["T"] * shape["D"] if part == "RSA scan" else None
                points.append(
                    shape | {"forward_seconds": seconds / 3, "seconds": seconds, "peak_bytes": memory},
                )
            fit = {"exponent": powers[axis] - 0.034, "standard_error": 0.021, "points": 3}
            exponents = {"seconds": fit, "forward_seconds": fit}
            if part == "RSA scan":
                exponents["peak_bytes"] = fit | {"exponent": 1.0}
            rows.append(
                {
                    "part": part,
                    "theory": theory,
                    "axis": axis,
                    "at": fixed,
                    "theoretical": powers[axis],
                    "exponents": exponents,
                    "counted_exponent": powers[axis],
                    "points": points,
                }
            )
    return rows


def run(loss: float, steps: int = 1000) -> Facts:
    """A training run with its losses, evaluated every 100 steps."""
    history: list[Facts] = []
    for step in range(50, steps + 1, 50):
        now = loss + 0.6 * math.exp(-step / 250)
        history.append({"step": step, "loss": now + 0.05, "learning_rate": 3e-4})
        if step % 100 == 0:
            history.append({"step": step, "eval_loss": now, "eval_perplexity_per_word": math.exp(1.4 * now)})
    return {
        "kind": "train",
        "finished": True,
        "steps": steps,
        "tokens": steps * 52_000,
        "parameters": {"base": 34_000_000, "added": 400_000},
        "history": history,
        "provenance": {"seed": 0},
    }


def small_experiments() -> list[Facts]:
    wiki = [
        scored_row(kind, 60.1 - 0.7 * math.sqrt(overlap) * (kind == "plain"), overlap=overlap, seeds=(0,))
        for kind in ("plain", "carry")
        for overlap in (0, 5, 10, 30, 50)
    ]
    for row in wiki:
        if row["gain"] is not None:
            row["gain"]["test"] = {
                "relative_gain": 0.002,
                "interval": [-0.003, 0.007],
                "within_noise": True,
                "seeds": 1,
            }
    variants = [
        scored_row("best", 128 + number, seeds=(0,)) | {"label": label}
        for number, label in enumerate(("tail of 16", "tail of 16 and 8 pooled slots", "max pooling"))
    ]
    return [
        experiment("table1", "perplexity", "Perplexity on an encyclopaedia against overlap", wiki),
        experiment(
            "table2",
            "perplexity",
            "Perplexity on books against overlap",
            books_rows(),
            missing=["best/w300/o75", "best/w300/o100"],
        ),
        experiment("figure4", "windows", "Perplexity on books against window size", window_rows()),
        experiment("figure5", "frontier", "Perplexity on books against FLOPs", window_rows((0, 10, 30, 50))),
        experiment("topics", "topics", "Topics of continuations", _topics()),
        experiment("table4", "continuations", "Continuations", _continuations()),
        experiment("prediction", "prediction", "Prediction of the next token", _prediction()),
        experiment("cost", "cost", "What recurrence costs", _cost()),
        experiment("slides-lengths", "lengths", "Recurrent rules at lengths", length_rows(), hyperparameters=None),
        experiment("slides-complexity", "complexity", "Time and memory", growth_rows(), hyperparameters=None),
        experiment("variants", "variants", "Tries of ours", variants),
        experiment("learning-rates", "learning_rates", "Learning rates", _learning_rates(), hyperparameters=None),
    ]


def write_size(folder: Path, experiments: Sequence[Facts]) -> None:
    """Write experiments, and a file for each run and score that their rows name."""
    for content in experiments:
        save_result(folder / f"{content['name']}.json", content)
        for row in content["rows"]:
            for number, name in enumerate(row.get("runs") or []):
                loss = 3.5 - GAINS.get(row["kind"], 0.0) + 0.01 * number
                _write(folder / "runs" / f"{name}.json", run(loss))
            for name in row.get("files") or []:
                _write(folder / name, {"kind": "rule"})
            for scores in (row.get("scores") or {}).values():
                for name in scores["files"]:
                    _write(folder / name, {"kind": "evaluation"})


def _write(path: Path, content: Facts) -> None:
    # Hundreds of files, for which `save_result`, safe against power cuts, is slow.
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_root(root: Path) -> Path:
    """A root with a whole small size and a tiny one that has hardly begun."""
    write_size(root / "small", small_experiments())
    begun = [scored_row("plain", 412.0, seeds=(0,)), scored_row("carry", 410.0, seeds=(0,)) | {"gain": None}]
    tiny = experiment("table2", "perplexity", "Perplexity on books against overlap", begun, size="tiny")
    write_size(root / "tiny", [tiny | {"missing": ["carry/w300/o5"]}])
    return root
