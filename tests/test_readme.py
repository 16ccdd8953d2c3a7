"""The Python examples of README and docs run as they stand, on tiny models."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from transformers import logging

from recurrify import RecurrentForCausalLM
from recurrify.mechanisms.base import RecurrenceConfig, mechanism_names, recurrence_config
from support.models import tiny
from support.runs import model_folder
from support.tokenizers import like_bert

README = Path(__file__).parent.parent / "README.md"
ENCODERS = README.parent / "docs" / "encoders.md"


def python_of(document: Path) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found, f"{document} shows no Python"
    return found


def test_the_first_python_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = python_of(README)[0]
    assert '"gpt2"' in code
    assert '"out"' in code
    base = model_folder(tmp_path / "gpt2", n_positions=1024)
    code = code.replace('"gpt2"', repr(str(base))).replace('"out"', repr(str(tmp_path / "out")))
    logging.set_verbosity_error()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    assert isinstance(names["model"], RecurrentForCausalLM)
    assert names["out"].state is not None
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpt2", "out"]


def test_all_settings_of_mechanisms_are_listed() -> None:
    page = (README.parent / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    listed = page.split("| name | settings |")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", listed, re.MULTILINE))
    assert sorted(rows) == sorted(set(mechanism_names()) - {"none"})
    shared = {field.name for field in fields(RecurrenceConfig)}
    for name, told in rows.items():
        own = {field.name for field in fields(recurrence_config({"mechanism": name}))} - shared
        assert all(f"`{one}" in told for one in own), name
        assert set(re.findall(r"`(\w+)=", told)) <= own


def test_the_example_without_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(python_of(README)[1], str(README), "exec"), names)
    assert names["model"].recurrence.mechanism == "lookback"
    assert names["model"].base.config.n_positions < 400
    assert capsys.readouterr().out.startswith("def read(path):")


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # Trainer's default, without a GPU
def test_the_examples_of_classification_questions_and_embeddings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logging.set_verbosity_error()
    monkeypatch.chdir(tmp_path)
    folders = {
        "gpt2": model_folder(tmp_path / "gpt2", n_positions=1024),
        "bert-base-uncased": tmp_path / "bert",
    }
    context = "Good words stand here . " * 200
    like_bert([context, "Which words ? A long text."]).save_pretrained(tmp_path / "bert")
    tiny("bert", max_position_embeddings=520).save_pretrained(tmp_path / "bert")
    answers = [{"text": "stand", "answer_start": context.index("stand")}]
    asked = {"context": context, "qas": [{"id": "1", "question": "Which words ?", "answers": answers}]}
    Path("questions.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": [asked]}]}), encoding="utf-8")
    classifier, answerer, embedder = python_of(ENCODERS)
    for code in (classifier, answerer, embedder):
        for name, folder in folders.items():
            code = code.replace(f'"{name}"', repr(str(folder)))
        names: dict[str, Any] = {}
        exec(compile(code, str(ENCODERS), "exec"), names)
        if code is not classifier and "found" in names:
            assert len(names["found"].tokens) == len(names["found"].ids) > 512
        if "out" in names:
            assert names["out"].start_logits.shape[1] > 1
            assert names["out"].loss.isfinite()
