"""`recurrify probe`, from the command to the page."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recurrify.cli import probe
from support.commands import invoke

Refused = Callable[..., str]
TEST = ["--distances", "3,1", "--examples", 4]


@pytest.fixture
def haystack(tmp_path: Path) -> Path:
    path = tmp_path / "hay.txt"
    path.write_text("It rained on the hills for days, and it was cold. " * 60, encoding="utf-8")
    return path


def test_a_model_on_hidden_facts(haystack: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--task", "passkey", "--task", "entities", *TEST, "--data", haystack, "--split", "all"]
    shown = invoke("probe", "shipped:recurrent", *options, "--out", out)
    result = json.loads((out / "result.json").read_text())
    assert [task["task"] for task in result["tasks"]] == ["passkey", "entities"]
    for task in result["tasks"]:
        assert [row["distance"] for row in task["rows"]] == [1, 3]
        assert [row["answers"] for row in task["rows"]] == [4, 4]
        assert task["chance"] == 1 / 8
    assert result["tasks"][0]["full_context"]["answers"] == 4
    assert result["provenance"]["config"]["recurrence"]["mechanism"] == "carry"
    assert result["window"] == 64
    assert "passkey (chance 12.5 %)" in shown
    assert (out / "probe.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "index.html").read_text()
    assert page.count('<figure class="chart') == 2
    assert "full context" in page


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    items = [
        {
            "question": f"Who is {number}?",
            "answers": [f"x{number}"],
            "ctxs": [{"title": "", "text": f"I am x{number}."}],
        }
        for number in range(20)
    ]
    path.write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
    return path


def test_a_base_with_a_memory_answers_questions(haystack: Path, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--task", "passkey", *TEST, "--haystack", haystack, "--split", "all", "--questions", questions]
    memory = ["--mechanism", "lookback", "--set", "keep=16", "--window", 64]
    shown = invoke("probe", "shipped:base", *options, *memory, "--out", out)
    result = json.loads((out / "result.json").read_text())
    assert result["name"] == "shipped:base lookback keep=16"
    assert result["provenance"]["config"]["recurrence"]["keep"] == 16
    assert [task["task"] for task in result["tasks"]] == ["passkey", "questions"]
    assert [row["answers"] for row in result["tasks"][1]["rows"]] == [4, 4]
    assert "questions (chance 12.5 %)" in shown


def test_tasks_are_listed() -> None:
    shown = invoke("probe", "tasks")
    for name in ("passkey", "needle", "recall", "variables", "copying", "reversal", "entities", "hidden"):
        assert name in shown


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--distances", "1,far"], "`--distances` must be numbers"),
            (["--distances", "0"], "from 1 on"),
            (["--distances", "1,99999999"], "has 6,400,000,000 tokens, but a probe's texts have at most 16,777,216"),
            (["--set", "keep=8"], "`--set keep=8` is a setting of a memory: name the memory with --mechanism."),
            (["--mechanism", "nothing"], "Unknown mechanism 'nothing'"),
            (["--questions", "missing.json"], "missing.json"),
            (["--task", "nothing"], "There is no probe 'nothing': there are passkey"),
        ],
        ids=["words", "zero", "far", "set", "mechanism", "questions", "task"],
    )
    def test_probing(self, refused: Refused, options: list[str], words: str, tmp_path: Path) -> None:
        assert words in refused("probe", "shipped:recurrent", *options, "--out", tmp_path)

    def test_training_without_the_package(self, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(probe.app, "registered_commands", probe.app.registered_commands[:3])
        assert "`recurrify probe train` comes with the package recurrify-papers" in refused("probe", "train")

    def test_missing_packages_are_reported_before_the_work(
        self, refused: Refused, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "altair", None)
        monkeypatch.delitem(sys.modules, "recurrify.pages.charts", raising=False)
        monkeypatch.setattr("recurrify.evaluate.probe_run.probe_model", pytest.fail)
        assert "Pages need the package 'altair'" in refused("probe", "shipped:recurrent")

    def test_no_such_model(self, refused: Refused) -> None:
        assert "There is no model 'shipped:nothing'" in refused("probe", "shipped:nothing")

    def test_pages_of_something_else(self, refused: Refused, tmp_path: Path) -> None:
        (tmp_path / "result.json").write_text('{"kind": "evaluation"}')
        assert "is not the result of a probe" in refused("probe", "page", tmp_path)

    @pytest.mark.parametrize("tasks", ["", ', "tasks": []', ', "tasks": 5', ', "tasks": ["passkey"]'])
    def test_pages_of_nothing(self, refused: Refused, tasks: str, tmp_path: Path) -> None:
        path = tmp_path / "result.json"
        path.write_text(f'{{"kind": "probe"{tasks}}}')
        shown = refused("probe", "page", path, "--out", tmp_path / "out")
        assert shown.startswith(f"{path} contains no tasks")
        assert not (tmp_path / "out").exists()
