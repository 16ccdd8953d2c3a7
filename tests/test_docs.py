"""Every code block in README and docs runs: Python as it stands, commands as far as their options are known.

The same holds for the examples that commands show in their help.
"""

import ast
import json
import re
import shlex
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from transformers import logging

from recurrify import MechanismConfig
from recurrify.cli.main import app
from recurrify.mechanisms import registry
from recurrify.mechanisms.registry import BUILT_IN, recurrence_config
from support.models import tiny
from support.processes import free_port
from support.runs import model_folder
from support.tokenizers import like_bert

ROOT = Path(__file__).parent.parent
OWN_TESTS = ("scratch.md", "forecasting.md")
"""Pages of the papers, whose examples run in the tests of the papers."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in OWN_TESTS)]
CONTEXT = "Good words stand here . " * 200


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def pages_with(language: str) -> list[Any]:
    found = [page for page in PAGES if blocks(page, language)]
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in found]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models in place of those on the hub, by name."""
    folder = tmp_path_factory.mktemp("models")
    like_bert([CONTEXT, "Which words ? A long text."]).save_pretrained(folder / "bert")
    tiny("bert", max_position_embeddings=520).save_pretrained(folder / "bert")
    decoder = model_folder(folder / "gpt2", n_positions=1024)
    return {"gpt2": decoder, "smollm2": decoder, "bert-base-uncased": folder / "bert"}


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # Trainer's default, without a GPU
@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks_run(
    page: Path, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example that raises fails the test, and so does one that imports what is not public; names of one block are
    known in the next, as a reader would expect."""
    logging.set_verbosity_error()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))  # examples register their own
    answers = [{"text": "stand", "answer_start": CONTEXT.index("stand")}]
    asked = {"context": CONTEXT, "qas": [{"id": "1", "question": "Which words ?", "answers": answers}]}
    Path("questions.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": [asked]}]}), encoding="utf-8")
    names: dict[str, Any] = {"__name__": "example"}
    port = str(free_port())
    for code in blocks(page, "python"):
        code = code.replace("8765", port)
        for name, folder in models.items():
            code = code.replace(f'"{name}"', repr(str(folder)))
        exec(compile(code, str(page), "exec"), names)
        assert not private_imports(code)


def private_imports(code: str) -> list[str]:
    """The names that are imported from recurrify, but that its modules do not list."""
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").partition(".")[0] in ("recurrify", "recurrify_papers")]
    listed = {node.module: getattr(import_module(str(node.module)), "__all__", ()) for node in ours}
    return [one.name for node in ours for one in node.names if one.name not in listed[node.module]]


def test_private_imports_are_found() -> None:
    assert private_imports("from recurrify import load_model\nfrom recurrify.masks import widen") == ["widen"]


APP: Any = typer.main.get_command(app)


def commands() -> list[Any]:
    lines = [(page.stem, line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    lines += [("help", line) for line in examples_of(APP)]
    return [pytest.param(line, id=f"{name}: {line}") for name, line in lines if line.startswith("recurrify ")]


def examples_of(command: Any) -> list[str]:
    own = re.findall(r"`(.+)`", command.epilog or "")
    return own + [line for inner in getattr(command, "commands", {}).values() for line in examples_of(inner)]


@pytest.mark.parametrize("line", commands())
def test_commands_have_these_options(line: str) -> None:
    command = APP
    words = shlex.split(line, comments=True)[1:]
    while hasattr(command, "commands"):
        # `recurrify probe MODEL` is short for `recurrify probe model MODEL`.
        command = command.commands[words.pop(0) if words[0] in command.commands else "model"]
    context = command.make_context("recurrify", words, resilient_parsing=True)
    assert not context.args, context.args
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.split("=")[0] for word in words if re.fullmatch(r"--[a-z-]+.*", word)} <= known


def test_all_settings_of_mechanisms_are_listed() -> None:
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    listed = page.split("| name | settings |")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", listed, re.MULTILINE))
    assert sorted(rows) == sorted(BUILT_IN.keys() - {"none"})
    shared = {field.name for field in fields(MechanismConfig)}
    for name, text in rows.items():
        own = {field.name for field in fields(recurrence_config({"mechanism": name}))} - shared
        assert all(f"`{one}" in text for one in own), name
        assert set(re.findall(r"`(\w+)=", text)) <= own
