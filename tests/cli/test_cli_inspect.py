"""`recurrify inspect` from names to a page, and its errors."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recurrify.data.tokens import TokenizedDocument
from recurrify.evaluate.flops import memory_cost
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.modeling.loading import load_model
from recurrify.results import load_result
from support.commands import invoke

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("story") / "story.txt"
    path.write_text(" ".join(f"w{(7 * place) % 40}" for place in range(60)))
    return path


def test_a_page_and_its_numbers(runs: dict[str, Path], story: Path, tmp_path: Path) -> None:
    shown = invoke(
        "inspect", runs["recurrent"], "--data", story, "--plain", runs["plain"], "--out", tmp_path, "--tokens", 50
    )
    assert "49 tokens scored in 7 windows" in shown
    assert str(tmp_path / "index.html") in shown
    found = load_result(tmp_path / "inspection.json")
    assert "".join(found["tokens"]["text"]) == " ".join(story.read_text().split()[:50])
    for name in ("plain", "recurrent"):
        model, tokenizer = load_model(str(runs[name]))
        ids = np.asarray(tokenizer(story.read_text(), add_special_tokens=False)["input_ids"][:50])
        score = evaluate_documents(model, [TokenizedDocument("story", ids, 1, 1, 1)])
        assert sum(found["tokens"][name][1:]) == pytest.approx(score.nll[0], rel=1e-5)
        means = [window[name] for window in found["windows"]]
        assert means == pytest.approx(list(score.loss_by_window), rel=1e-5)
    cost = memory_cost(load_model(str(runs["recurrent"]))[0])
    assert found["memory"] == cost._asdict()
    assert cost.state_floats > 0
    assert found["slot_attention"]["layers"] == [2]
    assert found["gradients"]["windows"] == [7]
    assert len(found["gradients"]["mean"]) == 7
    assert len(found["states"]["norm"]) == 6
    assert found["provenance"]["config"]["tokens"] == 50
    assert found["provenance"]["data_checksum"]
    page = (tmp_path / "index.html").read_text()
    assert "w35" in page
    shown = invoke("inspect", runs["recurrent"], "--data", story, "--out", tmp_path, "--tokens", 20)
    aside = next(tmp_path.glob("inspection-*.json"))
    assert f"had other settings and was renamed to {aside}" in shown
    assert load_result(aside) == found
    assert load_result(tmp_path / "inspection.json")["provenance"]["config"]["tokens"] == 20


def test_the_same_base_is_the_plain_model(runs: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    invoke("inspect", runs["recurrent"], "--data", texts, "--out", tmp_path, "--document", 3, "--reach", 2)
    found = load_result(tmp_path / "inspection.json")
    assert found["document"] == sorted(path.name for path in texts.iterdir())[2]
    own = found["recurrence"]["window"] + 1
    # Up to the end of the first window nothing was carried; behind it, what was carried matters.
    assert found["tokens"]["plain"][1:own] == pytest.approx(found["tokens"]["recurrent"][1:own], rel=1e-5)
    assert abs(found["windows"][1]["plain"] - found["windows"][1]["recurrent"]) > 1e-6
    assert len(found["gradients"]["mean"]) == 3


def test_other_models_can_be_compared(runs: dict[str, Path], story: Path, tmp_path: Path) -> None:
    invoke("inspect", runs["recurrent"], "--data", story, "--compare", runs["plain"], "--out", tmp_path, "--tokens", 20)
    tokens = load_result(tmp_path / "inspection.json")["tokens"]
    invoke(
        "inspect", runs["recurrent"], "--data", story, "--plain", runs["plain"], "--out", tmp_path / "b", "--tokens", 20
    )
    assert tokens[str(runs["plain"])] == load_result(tmp_path / "b" / "inspection.json")["tokens"]["plain"]
    assert (tmp_path / "index.html").read_text().count(f'<option value="{runs["plain"]}"') == 2


def test_characters_of_several_tokens(tmp_path: Path) -> None:
    story = "A naïve   🙂🙃 story,\r\n\tin bytes: ☃.\n"
    (tmp_path / "story.txt").write_text(story, newline="")
    invoke("inspect", "shipped:recurrent", "--data", tmp_path / "story.txt", "--out", tmp_path)
    tokens = load_result(tmp_path / "inspection.json")["tokens"]
    assert "".join(tokens["text"]) == story
    # Each smile is several tokens, and stands with the first of them.
    smile = next(place for place, piece in enumerate(tokens["text"]) if "🙂" in piece)
    assert tokens["text"][smile + 1] == ""
    assert len(tokens["text"]) == len(tokens["plain"]) == len(tokens["recurrent"])


class TestRefusals:
    @pytest.mark.parametrize("kind", ["a base", "plain windows"])
    def test_a_model_without_memory(
        self, refused: Refused, base: Path, runs: dict[str, Path], story: Path, tmp_path: Path, kind: str
    ) -> None:
        model = base if kind == "a base" else runs["plain"]
        sentence = refused("inspect", model, "--data", story, "--out", tmp_path / "page")
        assert "has no memory to inspect: give a recurrent model" in sentence
        assert not (tmp_path / "page").exists()

    def test_a_plain_model_with_memory(self, refused: Refused, runs: dict[str, Path], story: Path) -> None:
        sentence = refused("inspect", runs["recurrent"], "--data", story, "--plain", runs["recurrent"])
        assert "`--plain` is for a model without memory" in sentence

    def test_other_tokens(self, refused: Refused, runs: dict[str, Path], story: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        shutil.copytree(runs["plain"] / "model", other)
        vocabulary = other / "tokenizer.json"
        vocabulary.write_text(vocabulary.read_text().replace('"w7"', '"seven"'))
        assert "other tokens" in refused("inspect", runs["recurrent"], "--data", story, "--plain", other)

    def test_no_such_document(self, refused: Refused, runs: dict[str, Path], story: Path) -> None:
        sentence = refused("inspect", runs["recurrent"], "--data", story, "--document", 2)
        assert "has only 1 document" in sentence

    def test_no_such_text(self, refused: Refused, runs: dict[str, Path], tmp_path: Path) -> None:
        assert "nothing.txt does not exist" in refused("inspect", runs["recurrent"], "--data", tmp_path / "nothing.txt")

    def test_one_token(self, refused: Refused, runs: dict[str, Path], tmp_path: Path) -> None:
        (tmp_path / "short.txt").write_text("w9")
        assert "too few to predict any" in refused("inspect", runs["recurrent"], "--data", tmp_path / "short.txt")
