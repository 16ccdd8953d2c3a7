"""The whole demo, on models and a corpus of next to nothing."""

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging

from recurrify import add_recurrence, model_names
from recurrify import demo as demo_module
from recurrify.data.documents import CORPORA, Corpus
from recurrify.data.records import Document, Skipped
from recurrify.demo import OVERLAPS, RECURRENCE, run_demo
from recurrify.errors import UserError
from recurrify.evaluate import rows as evaluation
from recurrify.evaluate.bootstrap import interval, relative_gain
from recurrify.pages import numbers
from recurrify.pages.demo import summary
from recurrify.train import finetune
from support.commands import invoke
from support.tokenizers import like_gpt2

LIVE_TOKENS = 10_000


def source_code(split: str, count: int, length: int) -> list[Document]:
    """Lines that look a little like a program, enough of them for several windows."""
    chance = random.Random(split)
    found = []
    for number in range(count):
        names = chance.sample(["first", "second", "state", "window", "overlap", "tokens", "memory"], 3)
        lines = [f"    {chance.choice(names)} = {chance.choice(names)} + {chance.randrange(9)}" for _ in range(length)]
        found.append(Document(f"{split}{number}.py", f"def function_{number}():\n" + "\n".join(lines) + "\n"))
    return found


TEXTS = {
    "train": source_code("train", 12, 100),
    "valid": source_code("valid", 2, 40),
    "test": source_code("test", 3, 40),
}


def load_texts(split: str, limit: int | None, skipped: list[Skipped]) -> list[Document]:
    return TEXTS[split][:limit]


def no_model(name: str) -> str:
    raise UserError("No network.")


def ship(folder: Path) -> None:
    """base, plain and recurrent, as they are shipped."""
    words = like_gpt2([document.text for document in TEXTS["train"]], 300)
    sizes = {"n_positions": 256, "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": len(words)}
    end = words.eos_token_id
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=end, eos_token_id=end))
    base.save_pretrained(folder / "base")
    for kind, recurrence in RECURRENCE.items():
        add_recurrence(base, recurrence).save_pretrained(folder / kind)
    for name in ("base", *RECURRENCE):
        words.save_pretrained(folder / name)


@pytest.fixture(scope="module", autouse=True)
def _tiny_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("shipped")
    verbosity = logging.get_verbosity()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_names, "SHIPPED", folder)
        patch.setitem(CORPORA, "stdlib", Corpus("a few lines", load_texts))
        for bootstrap in (interval, relative_gain):  # thousands of samples take as long as all the rest
            patch.setattr(evaluation, bootstrap.__name__, partial(bootstrap, samples=20))
        patch.setattr(demo_module, "named_source", no_model)
        patch.setattr(demo_module, "NOVEL", folder / "novel.txt")
        ship(folder)
        (folder / "novel.txt").write_text(TEXTS["test"][0].text, encoding="utf-8")
        yield
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()


def never(*_: Any, **__: Any) -> None:
    raise AssertionError("a finished step was repeated")


@pytest.fixture(scope="module")
def demo(_tiny_world: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """Stopped by Ctrl-C while the second model trains, and resumed."""
    out, said, trained = tmp_path_factory.mktemp("demo") / "deep" / "run", [], []
    real = finetune.train

    def train(model: Any, *args: Any) -> Any:
        trained.append(model.recurrence.mechanism)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(model, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetune, "train", train)
        with pytest.raises(KeyboardInterrupt):
            run_demo(out, lambda text: None, live_tokens=LIVE_TOKENS, test_tokens=200)
        assert not (out / "result.json").exists()
        assert "The second part, a tiny model, is still running." in (out / "index.html").read_text(encoding="utf-8")
        patch.setattr(demo_module, "_read", never)
        result = run_demo(out, said.append, live_tokens=LIVE_TOKENS, test_tokens=200)
    assert trained == ["none", "carry", "carry"]
    return out, result, said


def test_result(demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    out, result, said = demo
    assert result == json.loads((out / "result.json").read_text())
    rows = [(row["weights"], row["model"], row["overlap"]) for row in result["rows"]]
    assert rows == [
        ("shipped", "base", 0),
        *[("shipped", kind, overlap) for kind in RECURRENCE for overlap in OVERLAPS],
        *[("live", kind, 0) for kind in RECURRENCE],
    ]
    gains = [(gain["weights"], gain["overlap"]) for gain in result["gains"]]
    assert gains == [*[("shipped", overlap) for overlap in OVERLAPS], ("live", 0)]
    settings = result["settings"]
    assert (settings["test_documents"], settings["test_tokens"]) == (3, 3 * 199)
    assert settings["parameters"]["recurrent"] > settings["parameters"]["base"]
    assert result["curves"]["plain"]["tokens"] == result["curves"]["recurrent"]["tokens"]
    for weights in ("shipped", "live"):
        found = result["loss_by_position"][weights]
        assert len(found["plain"]) == len(found["recurrent"]) == 64
        assert None not in found["plain"] + found["recurrent"]
    assert result["provenance"]["data_checksum"]
    assert [text[:3] for text in said if text[1:3] == "/4"] == ["1/4", "2/4", "3/4", "4/4"]


def test_without_the_real_model_the_tiny_one_reads(demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    _, result, said = demo
    real = result["real"]
    assert real["model"] == "shipped:recurrent"
    assert any("smollm2 cannot be had" in text for text in said)
    assert "No network." in real["note"]
    roles = [row["role"] for row in real["rows"]]
    assert roles == ["memory", "windows", "overlap", "longer window", "full context"]
    assert [gain["against"] for gain in real["gains"]] == roles[1:]
    tokens = real["tokens"]
    assert "".join(tokens["text"]) == TEXTS["test"][0].text
    assert {len(tokens[role]) for role in roles} == {len(tokens["text"])}
    # Costs as much as the memory, and hardly more.
    price = real["rows"][0]["full_flops_per_token"]
    for row in real["rows"][2:4]:
        assert price <= row["full_flops_per_token"] < 1.1 * price
    assert set(real["continuation"]) == {"prompt_end", "truth", *RECURRENCE}


def test_files(demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    out, result, _ = demo
    parts = {"steps", "live-plain", "live-recurrent"}
    assert {path.name for path in out.iterdir()} == {"index.html", "result.json", *parts}
    page = (out / "index.html").read_text(encoding="utf-8")
    for row in result["rows"]:
        assert numbers.perplexity(row["perplexity_per_token"]) in page


def test_running_again_trains_nothing(
    demo: tuple[Path, dict[str, Any], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, result, _ = demo
    weights = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    assert len(weights) >= 2

    monkeypatch.setattr(finetune, "train", never)
    monkeypatch.setattr(evaluation, "evaluation_rows", never)
    monkeypatch.setattr(demo_module, "run_demo", partial(run_demo, test_tokens=200))
    (out / "index.html").unlink()
    said = invoke("demo", "--out", out, "--live-tokens", LIVE_TOKENS)
    assert all(line in said for line in summary(json.loads((out / "result.json").read_text())))
    assert (out / "index.html").is_file()
    assert {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")} == weights
    assert json.loads((out / "result.json").read_text())["curves"] == result["curves"]


def test_warm_up_is_shorter_than_the_run(demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    for kind in RECURRENCE:
        settings, result = (
            json.loads((demo[0] / f"live-{kind}" / name).read_text()) for name in ("run.json", "result.json")
        )
        assert 0 < settings["warmup_steps"] < result["steps"]


def test_other_budget_needs_another_folder(demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    with pytest.raises(UserError, match="max_tokens=10000 there, 20000 now"):
        run_demo(demo[0], lambda text: None, live_tokens=20_000)
