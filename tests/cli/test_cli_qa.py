"""`recurrify qa` from files to files."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recurrify.cli import main as cli
from recurrify.data.questions import QuestionSet, save_questions
from recurrify.errors import UserError
from recurrify.evaluate.answers import score_answers
from recurrify.mechanisms import mechanism_config, mechanism_names, recurrence_config
from recurrify.modeling.heads import add_recurrence
from recurrify.modeling.task_heads import RecurrentForQuestionAnswering
from recurrify.modeling.task_loading import load_task_model
from support.commands import invoke
from support.models import tiny
from support.runs import encoder_folder, question_file, town_questions

PLACES = ("rome", "paris", "oslo")
SHORT = ["--window", 16, "--batch", 3, "--learning-rate", 0.01, "--set", "warmup_steps=5"]
TRAINING = [*SHORT, "--epochs", 80, "--set", "schedule=constant_with_warmup"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qa")
    question_file(path / "towns.json")
    encoder_folder(path / "base")
    return path


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    data = ["--data", folder / "towns.json", "--test", folder / "towns.json"]
    said = invoke("qa", "train", "--model", folder / "base", "--out", folder / "run", *data, *TRAINING)
    assert "3 questions" in said
    return folder / "run"


def test_training(trained: Path) -> None:
    result = json.loads((trained / "result.json").read_text())
    assert result["test"]["exact_match"] == 100
    assert result["test"]["f1"] == 100
    assert result["test"]["windows_per_question"] == 2
    assert json.loads((trained / "predictions.json").read_text()) == {
        f"q{number}": place for number, place in enumerate(PLACES)
    }
    recurrence = result["provenance"]["config"]["recurrence"]
    paper = {"mechanism": "carry", "pooled_layers": "last", "hidden_layers": 2, "hidden_size": 768, "insert_layer": 2}
    assert recurrence == recurrence | paper
    assert result["questions"] == {"asked": 3, "trained_on": 3, "handled": {}}
    memory = result["memory"]
    width = load_task_model(str(trained), RecurrentForQuestionAnswering, trained_head=True)[0].base.config.hidden_size
    assert (memory["mechanism"], memory["state_floats"]) == ("carry", width)
    assert memory["added_parameters"] == result["parameters"]["added"]
    assert memory["extra_flops_per_token"] > 0


def test_finished_run_is_left_alone(folder: Path, trained: Path) -> None:
    before = (trained / "result.json").read_text()
    data = ["--data", folder / "towns.json", "--test", folder / "towns.json"]
    invoke("qa", "train", "--model", folder / "base", "--out", trained, *data, *TRAINING)
    assert (trained / "result.json").read_text() == before


def test_evaluate_and_predict_agree_with_training(folder: Path, trained: Path, tmp_path: Path) -> None:
    said = invoke("qa", "evaluate", trained, "--data", folder / "towns.json", "--out", tmp_path / "scores.json")
    assert said.startswith("F1 100.00 (95 %: 100.00 to 100.00), exact match 100.00")
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["by_question"] == {f"q{number}": [1, 1] for number in range(3)}
    assert scores["memory"] == json.loads((trained / "result.json").read_text())["memory"]
    unanswered = json.loads((folder / "towns.json").read_text())
    for entry in unanswered["data"][0]["paragraphs"][0]["qas"]:
        del entry["answers"]
    (tmp_path / "unanswered.json").write_text(json.dumps(unanswered))
    invoke("qa", "predict", trained, "--data", tmp_path / "unanswered.json", "--out", tmp_path / "answers.json")
    answers: dict[str, str] = json.loads((tmp_path / "answers.json").read_text())
    assert score_answers(answers, town_questions()).means == {"exact_match": 100, "f1": 100}


def test_hotpotqa_format(trained: Path, tmp_path: Path) -> None:
    item: dict[str, Any] = {"_id": "h", "question": "where is ann?", "context": [["towns", ["ann lives in rome."]]]}
    (tmp_path / "hotpot.json").write_text(json.dumps([item]))
    invoke("qa", "predict", trained, "--data", tmp_path / "hotpot.json", "--out", tmp_path / "answers.json")
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert set(answers) == {"answer", "sp"}
    assert set(answers["answer"]) == {"h"}


def test_question_without_context_counts_as_wrong(trained: Path, tmp_path: Path) -> None:
    """As in the official program, which knows nothing of why nothing was said."""
    towns = [["towns", ["ann lives in rome."]]]
    item = {"_id": "a", "question": "where is ann?", "answer": "rome", "context": towns}
    path, found = tmp_path / "hotpot.json", []
    for extra in ([], [item | {"_id": "b", "context": [["t", [""]]]}]):
        path.write_text(json.dumps([item, *extra]), encoding="utf-8")
        out = tmp_path / f"score{len(extra)}.json"
        invoke("qa", "evaluate", trained, "--data", path, "--out", out)
        found.append(json.loads(out.read_text()))
    alone, together = found
    assert (alone["questions"], together["questions"], together["skipped"]) == (1, 2, 1)
    assert together["by_question"] == alone["by_question"] | {"b": [0.0, 0.0]}
    assert together["f1"] == pytest.approx(alone["f1"] / 2)


def test_plain_windows(folder: Path, tmp_path: Path) -> None:
    data = ["--data", folder / "towns.json", "--test", folder / "towns.json", "--mechanism", "none", "--epochs", 1]
    invoke("qa", "train", "--model", folder / "base", "--out", tmp_path, *data, *SHORT)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["parameters"]["added"] == 0
    assert result["provenance"]["config"]["recurrence"]["mechanism"] == "none"


def test_set(folder: Path, tmp_path: Path) -> None:
    common = ["qa", "train", "--model", folder / "base", "--data", folder / "towns.json", *SHORT, "--epochs", 1]
    invoke(*common, "--out", tmp_path / "summary", "--mechanism", "summary", "--set", "limit=2", "--set", "tokens=1")
    invoke(*common, "--out", tmp_path / "carry", "--set", "hidden_size=8")
    summary, carry = (
        json.loads((tmp_path / name / "result.json").read_text())["provenance"]["config"]["recurrence"]
        for name in ("summary", "carry")
    )
    assert (summary["mechanism"], summary["limit"], summary["tokens"]) == ("summary", 2, 1)
    assert (carry["hidden_size"], carry["pooled_layers"]) == (8, "last")  # the rest as in the paper


def test_encoder_mechanisms() -> None:
    base = tiny("bert", "masked")
    for name in mechanism_names():
        sizes = {"kv": {"keep": 2, "sinks": 1}, "lookback": {"keep": 2}, "tail": {"tail": 2}}.get(name, {})
        config = recurrence_config({"mechanism": name, "window": 16, **sizes})
        if not mechanism_config(name).decoders_only:
            assert add_recurrence(base, config).recurrence == config
        else:
            with pytest.raises(UserError, match=name):
                add_recurrence(base, config)


def test_special_cases_are_reported(folder: Path, trained: Path, tmp_path: Path) -> None:
    long, empty, _ = town_questions()
    odd = [long._replace(question="where is ann? " * 9), empty._replace(question=" ")]
    save_questions(QuestionSet(odd, "squad"), tmp_path / "odd.json")
    data = ["--data", str(tmp_path / "odd.json"), "--batch", "2"]
    train = [
        "train",
        "--model",
        str(folder / "base"),
        "--out",
        str(tmp_path / "run"),
        "--window",
        "16",
        "--epochs",
        "1",
    ]
    predict = ["predict", str(trained), "--out", str(tmp_path / "answers.json")]
    for command in (train, ["evaluate", str(trained)], predict):
        said = CliRunner().invoke(cli.app, ["qa", *command, *data])
        assert said.exit_code == 0, said.output
        assert "odd.json: 2 questions, empty questions 1" in said.stderr
        assert "questions cut to half a window: 1\n" in said.stderr
        assert said.output.count("F1 ") == (command[0] == "evaluate")
    assert set(json.loads((tmp_path / "answers.json").read_text())) == {"q0", "q1"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "{base}", "--data", "{data}"], "train it first"),
        (["evaluate", "{run}", "--data", "nowhere.json"], "nowhere.json does not exist"),
        (["train", "--model", "{base}", "--data", "{data}", "--out", "x", "--window", "4"], "no room for question"),
        (["train", "--model", "{base}", "--data", "{data}", "--out", "x", "--epochs", "0"], "`epochs`"),
        (
            ["train", "--model", "{base}", "--data", "{lost}", "--out", "x"],
            "has its answer in its context: check the file",
        ),
        (["train", "--model", "{base}", "--data", "{data}", "--out", "x", "--mechanism", "kv"], "for decoders only"),
        (["train", "--model", "{base}", "--data", "{data}", "--out", "x", "--set", "limit"], "name=value"),
    ],
    ids=["no head", "no file", "small window", "no epochs", "no answers", "kv", "no value"],
)
def test_errors(arguments: list[str], words: str, folder: Path, trained: Path) -> None:
    lost = [question._replace(answers=("zebra",), span=None) for question in town_questions()]
    save_questions(QuestionSet(lost, "squad"), folder / "lost.json")
    names = {"base": folder / "base", "run": trained, "data": folder / "towns.json", "lost": folder / "lost.json"}
    found = CliRunner().invoke(cli.app, ["qa", *(argument.format(**names) for argument in arguments)])
    assert isinstance(found.exception, UserError), found.output
    assert words in str(found.exception)


def test_model_for_another_task_raises(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="recurrent already"):
        load_task_model(str(trained), RecurrentForQuestionAnswering, {"mechanism": "carry", "hidden_size": 5})
    config = json.loads((trained / "model" / "config.json").read_text())
    config["architectures"] = ["RecurrentForMaskedLM"]
    other = tmp_path / "other"
    other.mkdir()
    for file in (trained / "model").iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="is a RecurrentForMaskedLM"):
        load_task_model(str(other))
