"""Make the models that recurrify ships: a tiny base pretrained on the standard library, and its fine-tuned twins.

    python tools/make_shipped.py --out src/recurrify/shipped --jobs 12

Stages: a tokenizer; a GPT-2-architecture base; then plain windows, the paper's recurrence and the standardised
recurrence, each fine-tuned from that base for the same number of tokens with the same learning-rate candidates and
seeds. The learning rate is chosen per kind by validation; the first seed of plain and of the standardised
recurrence is shipped. Everything lands in one result file. Finished runs are skipped, killed ones resume.
"""

import argparse
import json
import os
import shutil
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    logging,
    set_seed,
)

from recurrify import CarryConfig, NoRecurrence, add_recurrence
from recurrify.console import say
from recurrify.data.documents import load_documents
from recurrify.data.sequences import TrainingSequences
from recurrify.data.texts import shorten
from recurrify.data.tokens import checksum, tokenize_documents
from recurrify.evaluate.bootstrap import relative_gain
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.mechanisms.config import MechanismConfig
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.results import load_result, provenance, save_result
from recurrify.train import train
from recurrify.train.settings import TrainSettings
from recurrify_papers.clusters import Resources
from recurrify_papers.runner import Run
from recurrify_papers.sweep import run_all

VOCABULARY, POSITIONS, WIDTH, LAYERS, HEADS = 1024, 256, 96, 4, 4
WINDOW, WINDOWS = 64, 8
RATES, SEEDS = (1e-3, 2e-3, 4e-3), (0, 1, 2)
KINDS: dict[str, MechanismConfig] = {
    "plain": NoRecurrence(window=WINDOW),
    "carry": CarryConfig(window=WINDOW),
    "standardised": CarryConfig(window=WINDOW, standardize=True),
}
SHIPPED = {"plain": "plain", "recurrent": "standardised"}


def make_tokenizer(data: str, folder: Path) -> None:
    documents = load_documents(data, "train")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token=end, pad_token=end)
    fast.save_pretrained(folder)


def run(name: str, model: Any, settings: dict[str, Any], tokenizer: Any, data: str, runs: Path) -> RecurrentForCausalLM:
    """Train to the end (or resume) and keep the best of its validations."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recurrence = model.recurrence
    train_tokens = tokenize_documents(load_documents(data, "train"), tokenizer)
    valid_tokens = shorten(tokenize_documents(load_documents(data, "valid"), tokenizer), tokenizer, 4_000)
    values = TrainSettings(
        model=name,
        data=data,
        out=str(runs / name),
        recurrence=recurrence.to_dict(),
        epochs=10_000,
        patience=0,
        precision="fp32",
        warmup_steps=100,
        schedule="cosine",
        **settings,
    )
    sequences = TrainingSequences(
        train_tokens, window=recurrence.window, overlap=recurrence.overlap, windows=values.windows
    )

    def validate(model: Any) -> dict[str, float]:
        evaluation = evaluate_documents(model, valid_tokens, rows=64)
        return {"loss": float(evaluation.nll.sum() / evaluation.tokens.sum())}

    outcome = train(model.to(device), sequences, values, validate, tokenizer)
    best = min(entry["eval_loss"] for entry in outcome.history if "eval_loss" in entry)
    model.save_pretrained(runs / name / "model")
    tokenizer.save_pretrained(runs / name / "model")
    save_result(
        runs / name / "result.json",
        {
            "name": name,
            "valid_loss": best,
            "steps": outcome.steps,
            "tokens": outcome.tokens,
            "curve": [[e["step"], e["eval_loss"]] for e in outcome.history if "eval_loss" in e],
        },
    )
    return model


def make_base(data: str, runs: Path, tokens: int) -> None:
    if (runs / "base" / "result.json").is_file():
        return
    make_tokenizer(data, runs / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(runs / "tokenizer")
    set_seed(0)
    end = tokenizer.eos_token_id
    base = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=POSITIONS,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
        )
    )
    model = add_recurrence(base, NoRecurrence(window=POSITIONS))
    settings = {
        "windows": 1,
        "batch": 128,
        "learning_rate": 4e-3,
        "max_tokens": tokens,
        "valid_every": tokens // 4,
    }
    run("base", model, settings, tokenizer, data, runs)
    base.save_pretrained(runs / "base" / "plain-gpt2")


def make_twin(settings: dict[str, Any], folder: Path, say: Any) -> dict[str, Any]:
    runs = folder.parent
    tokenizer = AutoTokenizer.from_pretrained(runs / "tokenizer")
    set_seed(settings["seed"])
    base = GPT2LMHeadModel.from_pretrained(runs / "base" / "plain-gpt2")
    training = {
        "windows": WINDOWS,
        "batch": 32,
        "learning_rate": settings["rate"],
        "max_tokens": settings["tokens"],
        "valid_every": settings["tokens"] // 4,
        "seed": settings["seed"],
    }
    model = add_recurrence(base, KINDS[settings["kind"]])
    run(folder.name, model, training, tokenizer, settings["data"], runs)
    return load_result(folder / "result.json")


def make_twins(arguments: argparse.Namespace) -> None:
    """As jobs, `--jobs` at a time: small models leave a GPU idle on their own."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    common = {"data": arguments.data, "tokens": arguments.twin_tokens}
    twins = [
        Run(
            name=f"{kind}-{rate:g}-{seed}",
            function="make_shipped:make_twin",
            settings={"kind": kind, "rate": rate, "seed": seed, **common},
        )
        for seed in SEEDS
        for rate in RATES
        for kind in KINDS
    ]
    run_all(twins, arguments.runs, say, Resources(jobs=arguments.jobs))


def choose_and_ship(arguments: argparse.Namespace, started: float, config: dict[str, Any]) -> None:
    data, runs, out = arguments.data, arguments.runs, arguments.out
    chosen: dict[str, float] = {}
    for kind in KINDS:
        mean = {r: statistics.mean(_valid_loss(runs, f"{kind}-{r:g}-{s}") for s in SEEDS) for r in RATES}
        chosen[kind] = min(mean, key=mean.__getitem__)
    tokenizer = AutoTokenizer.from_pretrained(runs / "tokenizer")
    documents = load_documents(data, "test")
    tokens = tokenize_documents(documents, tokenizer)
    evaluations = {
        kind: [_evaluate(runs / f"{kind}-{chosen[kind]:g}-{seed}" / "model", tokens) for seed in SEEDS]
        for kind in KINDS
    }
    result = {
        "kind": "shipped",
        "provenance": provenance(config, data_checksum=checksum(documents), started=started),
        "learning_rates": {"candidates": RATES, "chosen": chosen},
        "seeds": SEEDS,
        "runs": [load_result(path) for path in sorted(runs.glob("*/result.json"))],
        "test": {
            kind: {
                "perplexity_per_word": [evaluation.perplexity_per_word for evaluation in found],
                "perplexity_per_token": [evaluation.perplexity_per_token for evaluation in found],
            }
            for kind, found in evaluations.items()
        },
        "gains": {
            kind: {
                unit: asdict(relative_gain(evaluations["plain"], evaluations[kind], f"perplexity_per_{unit}"))
                for unit in ("word", "token")
            }
            for kind in KINDS
            if kind != "plain"
        },
    }
    save_result(arguments.result, result)
    _ship(runs / "base" / "plain-gpt2", runs / "tokenizer", out / "base", GPT2LMHeadModel)
    for name, kind in SHIPPED.items():
        source = runs / f"{kind}-{chosen[kind]:g}-{SEEDS[0]}" / "model"
        _ship(source, runs / "tokenizer", out / name, RecurrentForCausalLM)
    print(json.dumps({"chosen": chosen, "test": result["test"], "gains": result["gains"]}, indent=1))


def _valid_loss(runs: Path, name: str) -> float:
    return load_result(runs / name / "result.json")["valid_loss"]


def _evaluate(folder: Path, tokens: Any) -> Any:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Judged as they will be shipped: rounded to bfloat16, run in float32.
    model = RecurrentForCausalLM.from_pretrained(folder).to(torch.bfloat16).to(torch.float32)
    return evaluate_documents(model.to(device), tokens, rows=64)


def _ship(source: Path, tokenizer: Path, target: Path, kind: Any) -> None:
    shutil.rmtree(target, ignore_errors=True)
    kind.from_pretrained(source).to(torch.bfloat16).save_pretrained(target)
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (tokenizer / file).is_file():
            shutil.copy(tokenizer / file, target / file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="stdlib", help="the corpus: a name or a folder with train, valid and test")
    parser.add_argument("--runs", type=Path, default=Path("runs/shipped"), help="where runs are kept and resumed")
    parser.add_argument("--out", type=Path, default=Path("src/recurrify/shipped"), help="where the models go")
    parser.add_argument("--result", type=Path, default=Path("papers/results/shipped.json"), help="the result file")
    parser.add_argument("--base-tokens", type=int, default=60_000_000)
    parser.add_argument("--twin-tokens", type=int, default=8_000_000)
    parser.add_argument("--jobs", type=int, default=1, help="fine-tunings at a time")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    started = time.time()
    make_base(arguments.data, arguments.runs, arguments.base_tokens)
    make_twins(arguments)
    config = {"base_tokens": arguments.base_tokens, "twin_tokens": arguments.twin_tokens, "window": WINDOW}
    choose_and_ship(arguments, started, config)


if __name__ == "__main__":
    main()
