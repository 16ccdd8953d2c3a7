"""`recurrify qa table3` from question files to a table, in one go, in parts and by several units."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from recurrify.data.question_windows import WindowedQuestion, collate_questions
from recurrify.data.questions import Question, QuestionSet, load_questions, save_questions
from recurrify.evaluate.answers import score_answers
from recurrify.side_by_side import Outcome, Task
from recurrify.train import answering
from recurrify_papers.table3 import table3 as answer_table3
from recurrify_papers.table3 import table3_result as answer_table3_result
from support.commands import invoke
from support.models import tiny
from support.tokenizers import like_bert

TOWNS = [first + second for first in ("ro", "pa", "os", "be", "ri", "ki") for second in ("me", "ris", "lo", "rn", "ga")]


def questions() -> list[Question]:
    made = []
    for number, town in enumerate(TOWNS):
        context = f"who lives here: person number {number} lives in {town}."
        span = (context.index(town), context.index(town) + len(town))
        made.append(Question(f"q{number}", f"where is {number}?", context, (town,), "span", span, f"town {number}"))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table3")
    save_questions(QuestionSet(questions(), "squad"), path / "towns.json")
    for name, answers in (("a", ("rome", "yes")), ("b", ("oslo", "bern"))):
        items = [
            {"_id": f"{name}{n}", "question": "where?", "answer": answer, "context": [["t", ["rome and oslo, bern."]]]}
            for n, answer in enumerate(answers)
        ]
        (path / f"hotpot_{name}.json").write_text(json.dumps(items))
    tokenizer = like_bert([text for question in questions() for text in (question.context, question.question)])
    tiny("bert", "masked", vocab_size=len(tokenizer), pad_token_id=0).save_pretrained(path / "base")
    tokenizer.save_pretrained(path / "base")
    return path


def command(folder: Path, root: Path, *more: object) -> list[object]:
    given = ["--model", folder / "base", "--data", folder / "towns.json", "--root", root, "--distractors", 1]
    return ["qa", "table3", *given, "--window", 16, "--batch", 8, "--epochs", 2, "--warmup-steps", 1, *more]


EXTRA = ("hotpot_a.json", "hotpot_b.json")


@pytest.fixture(scope="module")
def done(folder: Path) -> tuple[Path, str, dict[str, list[list[str]]]]:
    """The table's folder, what the command said, and the batches that each run was trained on."""
    seen: dict[str, list[list[str]]] = {}
    names: list[str] = []

    def watched(batch: Sequence[WindowedQuestion], **more: Any) -> dict[str, Tensor]:
        seen.setdefault(names[-1], []).append([question.id for question in batch])
        return collate_questions(batch, **more)

    def named(settings: Any, *more: Any) -> dict[str, Any]:
        names.append(Path(settings.out).name)
        return answer_train(settings, *more)

    answer_train = answer_table3.answer_train
    root = folder / "done"
    extra = [part for name in EXTRA for part in ("--extra-test", folder / name)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answering, "collate_questions", watched)
        patch.setattr(answer_table3, "answer_train", named)
        said = invoke(*command(folder, root, "--seeds", 2, "--rates", "0.001,0.01", *extra))
    return root, said, seen


def test_the_table_says_what_the_models_answer(folder: Path, done: Any) -> None:
    root, said, _ = done
    result = json.loads((root / "table3.json").read_text())
    assert [test["name"] for test in result["tests"]] == ["test", "hotpot_a", "hotpot_b", "extra-tests-together"]
    test = result["tests"][0]
    chosen = result["learning_rates"]["chosen"]
    for row in test["rows"]:
        for seed in range(2):
            run = root / "runs" / f"{row['kind']}-{chosen[row['kind']]:g}-s{seed}"
            invoke("qa", "predict", run, "--data", root / "data" / "test.json", "--out", folder / "answers.json")
            answers = json.loads((folder / "answers.json").read_text())
            means = score_answers(answers, load_questions(root / "data" / "test.json").questions).means
            assert {name: row[name]["by_seed"][seed] for name in means} == pytest.approx(means)
    together, parts = result["tests"][3], result["tests"][1:3]
    assert together["questions"] == 4
    for number, row in enumerate(together["rows"]):
        halves = [part["rows"][number]["f1"]["mean"] for part in parts]
        assert row["f1"]["mean"] == pytest.approx(sum(halves) / 2)
    assert result["published"]["difference"]["f1"] == pytest.approx(0.95)
    assert result["statement"] in said
    assert (root / "table3.md").read_text().strip() in said


def test_both_kinds_and_all_rates_see_the_same_batches(done: Any) -> None:
    root, _, seen = done
    result = json.loads((root / "table3.json").read_text())
    assert len(seen) == 6  # two rates of two kinds, and one more seed of each
    orders = {seed: [seen[name] for name in seen if name.endswith(f"-s{seed}")] for seed in (0, 1)}
    for found in orders.values():
        assert all(batches == found[0] for batches in found)
    assert orders[0][0] != orders[1][0]
    training = result["training"]
    assert training["disjoint"]["tokens"] == training["recurrent"]["tokens"]
    assert training["disjoint"]["questions"] == training["recurrent"]["questions"]
    assert training["disjoint"]["parameters"]["added"] == 0 < training["recurrent"]["parameters"]["added"]


def test_the_rate_is_chosen_on_validation_and_the_test_is_kept_from_it(done: Any) -> None:
    root, _, _ = done
    rates = json.loads((root / "table3.json").read_text())["learning_rates"]
    for kind in ("disjoint", "recurrent"):
        trials = {one["learning_rate"]: one["valid_f1"] for one in rates["trials"] if one["kind"] == kind}
        assert set(trials) == {0.001, 0.01}
        assert trials[rates["chosen"][kind]] == max(trials.values())
        other = next(rate for rate in trials if rate != rates["chosen"][kind])
        assert not list((root / "runs" / f"{kind}-{other:g}-s0").glob("score-*"))


def test_the_table_names_what_its_runs_were_made_with(done: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, said, _ = done
    made = json.loads((root / "table3.json").read_text())["made_at"]
    assert made["runs"] == 6
    assert {sum(made[name].values()) for name in ("commits", "devices", "torch", "transformers")} == {6}
    assert f"; torch {next(iter(made['torch']))}; " in said
    path = root / "runs" / "disjoint-0.01-s0" / "result.json"
    before = path.read_text()
    other = json.loads(before)
    other["provenance"]["git"] = {"commit": "c" * 40, "dirty": None}
    extra = [part for name in EXTRA for part in ("--extra-test", folder / name)]
    monkeypatch.setattr(answer_table3_result, "mean_interval", lambda values: None)  # takes long and is not asked about
    try:
        path.write_text(json.dumps(other))
        said = invoke(*command(folder, root, "--seeds", 2, "--rates", "0.001,0.01", *extra))
    finally:
        path.write_text(before)
    assert "a mix of commits: " in said
    assert "ccccccc (1 of 6 runs)" in said


def test_a_second_run_trains_nothing_and_other_settings_are_refused(folder: Path, done: Any, refused: Any) -> None:
    root, said, _ = done
    extra = [part for name in EXTRA for part in ("--extra-test", folder / name)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_table3, "answer_train", lambda *_: pytest.fail("trained again"))
        patch.setattr(answer_table3, "answer_evaluate", lambda *_: pytest.fail("scored again"))
        assert invoke(*command(folder, root, "--seeds", 2, "--rates", "0.001,0.01", *extra)) == said
    assert "other settings (epochs=2.0 there" in refused(*command(folder, root, "--epochs", 3, "--rates", "0.001,0.01"))
    assert "`rates` must be numbers" in refused(*command(folder, root, "--rates", "much"))


def test_units_side_by_side_after_the_time_was_up(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = command(folder, tmp_path, "--seeds", 1, "--rates", 0.01)
    invoke(*common, "--max-minutes", 1e-9)
    assert not (tmp_path / "table3.json").exists()
    assert not list(tmp_path.glob("runs/*/result.json"))

    def here(tasks: Sequence[Task], *_: Any) -> Outcome:
        """What Python would be called with in processes of their own, which take long to start, in this one."""
        for task in tasks:
            option, code, path = task.arguments
            assert option == "-c"
            monkeypatch.setattr(sys, "argv", ["-c", path])
            with pytest.raises(SystemExit) as ended:
                exec(code, {})
            assert ended.value.code == 0
        return Outcome(True, [])

    monkeypatch.setattr(answer_table3, "run_side_by_side", here)
    invoke(*common, "--jobs", 2)
    result = json.loads((tmp_path / "table3.json").read_text())
    assert {one.name for one in tmp_path.glob("runs/*")} == {"disjoint-0.01-s0", "recurrent-0.01-s0"}
    assert result["tests"][0]["seeds"] == 1
    assert result["tests"][0]["rows"][0]["f1"]["standard_deviation"] is None
