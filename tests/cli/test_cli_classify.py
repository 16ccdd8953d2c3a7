"""`recurrify classify` from files to files."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch.nn import functional
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer, T5Config

from recurrify.modeling.task_heads import RecurrentForSequenceClassification
from support.commands import Command, invoke
from support.models import EOS, tiny
from support.runs import weights_of
from support.tokenizers import like_bert
from support.words import word_tokenizer

WINDOW = 8
TRAINING = ["--window", WINDOW, "--batch", 6, "--learning-rate", 0.01, "--set", "warmup_steps=2", "--epochs", 4]

CLASSES = {"10": range(10, 14), "2": range(20, 24), "7": range(30, 34)}
"""Each class has words of its own; in sorted order they are 2, 7, 10."""
ORDER = ["2", "7", "10"]


def write_texts(path: Path, count: int, seed: int, wrong: int = 0, classes: Any = tuple(CLASSES)) -> Path:
    """Texts of one to four windows; the classes of the first `wrong` are those of others, and line 4 is empty."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        label = classes[number % len(classes)]
        words = [f"w{chance.choice([*CLASSES[label], 40, 41])}" for _ in range(chance.randrange(3, 30))]
        said = classes[(number + 1) % len(classes)] if number < wrong else label
        rows.append([" ".join(words) if number != 2 else " ", said])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "label"], *rows])
    return path


def read_texts(path: Path) -> list[tuple[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file) if row["text"].strip()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("classify")
    write_texts(path / "train.csv", 61, 0)
    write_texts(path / "test.csv", 25, 1, wrong=6)
    # As GPT-2 is published: without a padding token.
    decoder, words = tiny("gpt2", pad_token_id=None), word_tokenizer()
    words.pad_token = None
    encoder, pieces = tiny("bert", vocab_size=80), like_bert([" ".join(f"w{number}" for number in range(10, 60))])
    assert len(pieces) <= 80
    other = T5Config(vocab_size=60, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2)
    bases = {"decoder": (decoder, words), "encoder": (encoder, pieces)}
    bases["other"] = (AutoModelForSeq2SeqLM.from_config(other), words)
    for name, (model, tokenizer) in bases.items():
        model.save_pretrained(path / name)
        tokenizer.save_pretrained(path / name)
    return path


def train(folder: Path, base: str, out: Path, *more: object, data: str = "train.csv") -> Path:
    invoke("classify", "train", "--model", folder / base, "--data", folder / data, "--out", out, *TRAINING, *more)
    return out


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Path]:
    test = ["--test", folder / "test.csv"]
    plain = [*test, "--mechanism", "none"]
    small = [*test, "--set", "hidden_layers=1", "--set", "hidden_size=12", "--set", "insert_layer=all"]
    return {
        "recurrent": train(folder, "decoder", folder / "recurrent", *small, "--set", "language_weight=0.1"),
        "plain": train(folder, "decoder", folder / "plain", *plain),
        "encoder": train(folder, "encoder", folder / "encoding", *small),
    }


def result_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def logits_one_by_one(run: Path, texts: list[str]) -> np.ndarray:
    """By transformers' own way to load a classifier, without padding; an encoder's windows made here by hand."""
    model = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    assert type(model) is RecurrentForSequenceClassification
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    found = []
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        if not model.family.causal:
            first, *inside, last = ids
            ids = []
            while inside:
                piece, inside = inside[: WINDOW - 2], inside[WINDOW - 2 :]
                ids += [first, *piece, last]
        elif model.mechanism is None:
            ids = ids[-WINDOW:]  # all that it knows of, and as much of it as there is
        with torch.no_grad():
            found.append(model(torch.tensor([ids])).logits[0])
    return torch.stack(found).double().numpy()


@pytest.mark.parametrize("name", ["recurrent", "plain", "encoder"])
def test_scores(name: str, folder: Path, runs: dict[str, Path]) -> None:
    texts = read_texts(folder / "test.csv")
    logits = torch.from_numpy(logits_one_by_one(runs[name], [text for text, _ in texts]))
    shares = logits.softmax(1).numpy()
    true, said = [ORDER.index(label) for _, label in texts], shares.argmax(1)
    found = result_of(runs[name])["test"]
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(true, said, average="macro", zero_division=0)
    expected = {
        "accuracy": metrics.accuracy_score(true, said),
        "precision": precision,
        "recall": recall,
        "f1": f1,
        "roc_auc": metrics.roc_auc_score(true, shares, multi_class="ovr"),
        "loss": functional.cross_entropy(logits, torch.tensor(true)).item(),
    }
    assert {measure: found[measure] for measure in expected} == pytest.approx(expected, abs=1e-5)
    assert found["confusion"] == {
        "classes": ORDER,
        "true_by_predicted": metrics.confusion_matrix(true, said, labels=range(3)).tolist(),
    }
    assert found["texts"] == 24
    assert found["empty"] == 1
    low, high = found["accuracy_interval"]
    assert low < found["accuracy"] < high
    # Chance is a third, and six classes were exchanged, which nothing can foresee.
    assert 0.5 < found["accuracy"] < 0.85


def test_run_folder(folder: Path, runs: dict[str, Path]) -> None:
    result, config = result_of(runs["recurrent"]), json.loads((runs["recurrent"] / "model" / "config.json").read_text())
    for part in (config, config["text_config"]):
        assert part["id2label"] == {"0": "2", "1": "7", "2": "10"}
        assert part["label2id"] == {"2": 0, "7": 1, "10": 2}
        assert part["pad_token_id"] == EOS
    assert AutoTokenizer.from_pretrained(runs["recurrent"] / "model").pad_token == "</s>"
    assert config["language_weight"] == 0.1
    assert result["provenance"]["config"]["language_weight"] == 0.1
    assert json.loads((runs["recurrent"] / "run.json").read_text())["language_weight"] == 0.1
    assert result["texts"] == {
        "trained_on": {"2": 20, "7": 19, "10": 21},
        "tested_on": {"2": 8, "7": 8, "10": 8},
        "tested_and_trained_on": 0,
        "empty": 1,
    }
    assert result["memory"]["added_parameters"] == result["parameters"]["added"] > 0
    assert result["memory"]["state_floats"] > 0
    assert result_of(runs["plain"])["memory"]["state_floats"] == 0
    assert result["test"]["windows_per_text"] == pytest.approx(
        np.mean([-(-len(text.split()) // WINDOW) for text, _ in read_texts(folder / "test.csv")])
    )


def test_evaluate_compares_models(folder: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    shown = invoke(
        "classify", "evaluate", runs["plain"], runs["recurrent"], runs["encoder"],
        "--data", folder / "test.csv", "--out", out,
    )  # fmt: skip
    found = json.loads(out.read_text())
    assert [row["mechanism"] for row in found["rows"]] == ["none", "carry", "carry"]
    for row, name in zip(found["rows"], ("plain", "recurrent", "encoder"), strict=True):
        trained = result_of(runs[name])["test"]
        assert {key: row[key] for key in trained if key != "data"} == {
            key: pytest.approx(value, abs=1e-6) if isinstance(value, float) else value
            for key, value in trained.items()
            if key != "data"
        }
    assert found["rows"][0]["loss"] != pytest.approx(found["rows"][1]["loss"], abs=1e-3)
    assert result_of(runs["plain"])["parameters"]["added"] == 0 < result_of(runs["recurrent"])["parameters"]["added"]
    for gain, row in zip(found["gains"], found["rows"][1:], strict=True):
        assert gain["against"] == str(runs["plain"])
        assert gain["accuracy_gain"] == pytest.approx(row["accuracy"] - found["rows"][0]["accuracy"])
        assert gain["interval"][0] <= gain["accuracy_gain"] <= gain["interval"][1]
    assert f"vs. {runs['plain']}: accuracy" in shown
    assert found["provenance"]["data_checksum"] == found["rows"][0]["checksum"]


@pytest.mark.parametrize("name", ["recurrent", "encoder"])
def test_predict(name: str, folder: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    texts = [text for text, _ in read_texts(folder / "test.csv")]
    (tmp_path / "texts.jsonl").write_text(
        "\n".join(json.dumps({"body": text}) for text in [*texts[:2], "", *texts[2:]])
    )
    shares = torch.from_numpy(logits_one_by_one(runs[name], texts)).softmax(1).numpy()
    common = ["--data", tmp_path / "texts.jsonl", "--text-field", "body", "--batch", 5]
    assert "24 predictions" in invoke("classify", "predict", runs[name], *common, "--out", tmp_path / "found.csv")
    invoke("classify", "predict", runs[name], *common, "--out", tmp_path / "found.jsonl")
    with (tmp_path / "found.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    empty_row, empty_line = rows.pop(2), lines.pop(2)
    assert set(empty_row.values()) == {"2", "3", ""}
    assert empty_line == {"index": 2, "line": 3, "class": None, "probabilities": None}
    assert [int(row["line"]) for row in rows] == [line["line"] for line in lines] == [1, 2, *range(4, 26)]
    assert [int(row["index"]) for row in rows] == [line["index"] for line in lines] == [0, 1, *range(3, 25)]
    for row, line, own in zip(rows, lines, shares, strict=True):
        assert row["class"] == line["class"] == ORDER[own.argmax()]
        assert [float(row[f"probability_{label}"]) for label in ORDER] == pytest.approx(own.tolist(), abs=1e-5)
        assert list(line["probabilities"].values()) == pytest.approx(own.tolist(), abs=1e-5)


def test_language_weight_adds_the_next_token_loss(folder: Path, tmp_path: Path) -> None:
    rows = ["w10 w11 w12,a", "w20 w21 w22 w23 w24,b", "w30 w31,b"]
    (tmp_path / "few.csv").write_text("\n".join(["text,label", *rows]))
    said = {}
    for weight in (0, 0.5):
        out = tmp_path / str(weight)
        data = ["--data", tmp_path / "few.csv", "--test", tmp_path / "few.csv", "--mechanism", "none"]
        more = ["--set", f"language_weight={weight}", "--epochs", 1, "--set", "warmup_steps=0"]
        invoke("classify", "train", "--model", folder / "decoder", "--out", out, *data, *TRAINING[:-4], *more)
        said[weight] = next(entry["loss"] for entry in result_of(out)["history"] if "loss" in entry)
    losses = []
    for row in rows:
        ids = torch.tensor([[int(word[1:]) for word in row.split(",")[0].split()]])
        logits = tiny("gpt2")(ids).logits[0, :-1]
        losses.append(functional.cross_entropy(logits, ids[0, 1:], reduction="none"))
    assert said[0.5] - said[0] == pytest.approx(0.5 * torch.cat(losses).mean().item(), abs=1e-4)
    assert (weights_of(tmp_path / "0.5")["base.score.weight"] != weights_of(tmp_path / "0")["base.score.weight"]).any()


def test_changed_test_texts_raise(folder: Path, tmp_path: Path, refused: Command) -> None:
    test = write_texts(tmp_path / "test.csv", 6, 3)
    train(folder, "decoder", tmp_path / "run", "--test", test, "--max-minutes", 5)
    write_texts(test, 7, 4)
    arguments = [
        "--model",
        folder / "decoder",
        "--data",
        folder / "train.csv",
        "--out",
        tmp_path / "run",
        "--test",
        test,
    ]
    assert "the validation or test data changed since" in refused("classify", "train", *arguments, *TRAINING)


def test_overlap_of_training_and_test_is_reported(folder: Path, tmp_path: Path) -> None:
    said = invoke(
        "classify", "train", "--model", folder / "decoder", "--data", folder / "test.csv", "--out", tmp_path / "run",
        "--test", folder / "test.csv", *TRAINING,
    )  # fmt: skip
    result = result_of(tmp_path / "run")
    assert result["texts"]["tested_and_trained_on"] == result["test"]["texts"] == 24
    assert "precision, recall and F1 are means over classes" in said


def test_texts_are_not_overwritten(runs: dict[str, Path], tmp_path: Path, refused: Command) -> None:
    data = write_texts(tmp_path / "own.csv", 4, 0)
    before = data.read_bytes()
    for command in ("predict", "evaluate"):
        words = refused("classify", command, runs["plain"], "--data", data, "--out", data)
        assert "which this command reads" in words
    assert data.read_bytes() == before


def test_freeze_base(folder: Path, tmp_path: Path) -> None:
    bases = {name: tiny(family, "label", num_labels=3, **more) for name, family, more in
             (("decoder", "gpt2", {}), ("encoder", "bert", {"vocab_size": 80}))}  # fmt: skip
    for name, base in bases.items():
        base.save_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(folder / name).save_pretrained(tmp_path / name)
        small = ["--set", "hidden_layers=1", "--set", "hidden_size=12"]
        (tmp_path / "train.csv").write_bytes((folder / "train.csv").read_bytes())
        run = train(tmp_path, name, tmp_path / f"{name}-run", "--freeze-base", "--epochs", 0.5, *small)
        trained = weights_of(run)
        changed = {key for key, value in base.state_dict().items() if (trained[f"base.{key}"] != value).any()}
        heads = {"score.weight"} if name == "decoder" else {"classifier.weight", "classifier.bias"}
        assert {key for key in changed if ".pooler." not in key} == heads
        assert any(key.startswith("mechanism.") for key in trained)


def test_head_for_other_classes_is_replaced(folder: Path, tmp_path: Path) -> None:
    tiny("gpt2", "label", num_labels=2).save_pretrained(tmp_path / "two")
    word_tokenizer().save_pretrained(tmp_path / "two")
    more = ["--mechanism", "none", "--epochs", 0.1]
    data = ["--data", folder / "train.csv", "--test", folder / "test.csv"]
    common = ["--out", tmp_path / "run", *data, *TRAINING[:-4], "--set", "warmup_steps=0"]
    invoke("classify", "train", "--model", tmp_path / "two", *common, *more)
    assert weights_of(tmp_path / "run")["base.score.weight"].shape[0] == 3


TRAIN = ["train", "--model", "{decoder}", "--out", "{new}", "--data"]
REFUSED = {
    "no column": ([*TRAIN, "{train}", "--label-field", "kind"], "no field 'kind', only text, label"),
    "no text column": (
        ["predict", "{run}", "--data", "{train}", "--text-field", "x", "--out", "{new}.csv"],
        "no field 'x', only text, label",
    ),
    "one class": ([*TRAIN, "{one}"], "have the class 'a'"),
    "unknown class": ([*TRAIN, "{train}", "--test", "{one}"], "one.csv, line 2, has the class 'a'"),
    "unknown class to a run": (["evaluate", "{run}", "--data", "{one}"], "line 2, has the class 'a'"),
    "no classifier": (["evaluate", "{decoder}", "--data", "{train}"], "train it first"),
    "another head": (["evaluate", "shipped:recurrent", "--data", "{train}"], "is a RecurrentForCausalLM"),
    "no model": (["predict", "{folder}", "--data", "{train}", "--out", "{new}.csv"], "holds no model"),
    "cannot classify": (
        ["train", "--model", "{other}", "--data", "{train}", "--out", "{new}"],
        "'t5' are not supported",
    ),
    "other classes": (["train", "--model", "{run}", "--data", "{two}", "--out", "{new}"], "has the classes 2, 7, 10"),
    "weight for encoder": (
        ["train", "--model", "{encoder}", "--data", "{train}", "--out", "{new}", "--set", "language_weight=0.5"],
        "is an encoder",
    ),
    "overlap for encoder": (
        ["train", "--model", "{encoder}", "--data", "{train}", "--out", "{new}", "--overlap", "2"],
        "cannot overlap",
    ),
    "no gradients": ([*TRAIN, "{train}", "--set", "bptt_windows=1"], "use at least 2"),
    "odd file": (["predict", "{run}", "--data", "{train}", "--out", "{new}.txt"], "written as .csv or .jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_errors(case: str, folder: Path, runs: dict[str, Path], tmp_path: Path, refused: Command) -> None:
    (tmp_path / "one.csv").write_text("text,label\nw5,a\nw6,a\n")
    (tmp_path / "two.csv").write_text("text,label\nw5,a\nw6,b\nw7,a\n")
    names = {name: tmp_path / f"{name}.csv" for name in ("one", "two")}
    names |= {"folder": folder, "new": tmp_path / "new", "run": runs["recurrent"]}
    names |= {name: folder / name for name in ("decoder", "encoder", "other")} | {"train": folder / "train.csv"}
    arguments, words = REFUSED[case]
    assert words in refused("classify", *(argument.format(**names) for argument in arguments))
    assert not (tmp_path / "new").exists()
