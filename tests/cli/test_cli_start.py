"""Help and quick errors are quick, and help shows the settings that the code has."""

import json
import logging
import os
import socket
import subprocess
import sys
import tomllib
import warnings
from dataclasses import fields
from importlib.metadata import EntryPoint
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer
from huggingface_hub import constants
from transformers.utils import logging as transformers_logging
from typer.testing import CliRunner

from recurrify import UserError, __version__, hub_access
from recurrify.cli import inspect as inspecting
from recurrify.cli import main as cli
from recurrify.cli import names, options, probe
from recurrify.evaluate import probe_run
from recurrify.evaluate.inspection import REACH
from recurrify.mechanisms import mechanism_config, mechanism_names, recurrence_config, registry
from recurrify.mechanisms.registry import BUILT_IN
from recurrify.settings import declaration, setting_docs, setting_types
from recurrify.train import AnswerSettings, ClassifySettings, TrainSettings, memories
from support.commands import Command, invoke

LARGE = ("torch", "transformers", "datasets", "pandas", "numpy", "scipy", "sklearn", "matplotlib")
REPORT = f"print('large:', *(name for name in {LARGE} if name in sys.modules))"
HELP = f"""
import sys, typer
from typer.testing import CliRunner
from recurrify.cli import main as cli

def show(command, words):
    found = CliRunner().invoke(cli.app, [*words, "--help"])
    assert found.exit_code == 0, found.output
    print("shown:", *words)
    for name, inner in getattr(command, "commands", {{}}).items():
        show(inner, [*words, name])

show(typer.main.get_command(cli.app), [])
{REPORT}
"""
MAIN = "from recurrify.cli.main import main; main()"
QUICK = f"""
import json, sys
from recurrify.cli import main as cli

for arguments in json.loads(sys.argv.pop()):
    sys.argv[1:] = arguments
    try:
        cli.main()
    except SystemExit as ended:
        print("code:", ended.code)
{REPORT.replace("'numpy', ", "")}
"""
ERRORS = {
    "train --no-such-option": "Error: No such option: --no-such-option.",
    "train --data a --out b": "Error: Missing option '--model'.",
    "train --out b": "Error: Missing option '--model' and option '--data'.",
    "inspect": "Error: Missing argument 'MODEL' and option '--data'.",
    "classify predict": "Error: Missing argument 'MODEL', option '--data' and option '--out'.",
    "train --batch x": "unable to parse string as an integer: got 'x'.",
    "generate a": "Error: Give the text to continue",
    "train --config nowhere.yaml": "Error: `--config` cannot read 'nowhere.yaml'",
    "train --windw 8": "Error: No such option: --windw (did you mean --window or --windows?).",
    "evaluat gpt2": "Error: No such command 'evaluat'. Did you mean 'evaluate'?",
    "train --model ./a --data no.txt --out b --set kep=3": "No mechanism has a setting 'kep' (did you mean 'keep'?)",
    "train --model ./a --data no.txt --out b --batch 0": "Error: `batch` must be at least 1: got 0.",
    "train --model ./a --data no.txt --out b": "Error: no.txt does not exist",
    "train --model ./a --data stdlib --out b": "Error: There is no folder './a'",
    "add --model ./a --out b --mechanism carry --set slot=3": "has no setting 'slot' (did you mean 'slots'?): its",
    "train --data a --model ./a --out b --set keep=abc": "`keep` must be a whole number of at least 1: got keep='abc'",
    "add --model ./a --out b --mechanism carry --set pooling=men": "`pooling` must be 'mean' or 'max' or 'attention':",
    "probe train --mechanism rsa --set counts=[0,1.5]": "`counts` must be a list, and each entry a whole number: got",
    "add --model pyproject.toml --out b": "Error: 'pyproject.toml' is a file, not a model: give a model's folder",
    "evaluate shipped:bse --data stdlib": "Error: There is no model 'shipped:bse' (did you mean 'shipped:base'?)",
    "evaluate ./a --data stdlib --split tst": "Error: `split` must be",
    "evaluate ./a --data stdlib --device gpu": "Error: There is no device 'gpu'",
    "evaluate ./a --data no.txt --rows 3 --tokens-per-document 9": "Error: no.txt does not exist",  # earlier names
    "advise ./a": "Error: Missing option '--data'.",
    "inspect ./a no.txt": "Error: Missing option '--data'.",
    "probe ./a --haystack no.txt": "Error: no.txt does not exist",
    "probe ./a --task pass": "Error: There is no probe 'pass': there are passkey",
    "probe train --task x": "Error: There is no probe of symbols 'x'",
    "classify train --model ./a --data no.csv --out b": "Error: no.csv does not exist",
    "demo --out pyproject.toml/a": "Error: pyproject.toml/a cannot be written to: ",
    "evaluate ./a --data stdlib --out pyproject.toml/x.json": "pyproject.toml is a file, not a folder; choose another",
    "evaluate ./a --data stdlib --page pyproject.toml/x.html": "pyproject.toml is a file, not a folder; choose another",
    "probe ./a --out pyproject.toml/a": "Error: pyproject.toml/a cannot be written to: ",
    "add --model ./a --out pyproject.toml/a": "Error: pyproject.toml/a cannot be written to: ",
    "qa evaluate ./a --data no.json": "Error: no.json does not exist",
    "scratch train --arch xl --data no.txt --out b --clip 3": "Error: no.txt does not exist",
    "scratch evaluate ./a --data stdlib": "Error: './a' is not a folder",
    "train --model gpt2 --data stdlib --out pyproject.toml": "pyproject.toml is a file, not a folder; choose another",
    "classify train --model gpt2 --data no.csv --out pyproject.toml": "pyproject.toml is a file, not a folder; choose",
    "qa train --model gpt2 --data no.json --out pyproject.toml": "pyproject.toml is a file, not a folder; choose",
    "forecast train --data no.csv": "Error: no.csv does not exist",
    "forecast train --data pyproject.toml --out README.md": "README.md is a file, not a folder; choose another place.",
    "forecast evaluate ./a": "Error: There is no forecaster in 'a'",
    "pretrain --data no.txt --out b": "Error: no.txt does not exist",
    "bench trainin": "Error: Unknown part 'trainin'",
}
"""Commands that end before anything large is loaded."""
TRAINING_COMMANDS = {"train": TrainSettings, "classify train": ClassifySettings, "qa train": AnswerSettings}


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_loads_no_large_library() -> None:
    done = run(HELP)
    assert done.returncode == 0, done.stderr
    *shown, large = done.stdout.splitlines()
    assert large == "large:"
    assert {"shown:", "shown: train", "shown: probe model", "shown: qa train"} <= set(shown)


def test_quick_errors_load_no_large_library() -> None:
    done = run(QUICK, json.dumps([["--version"], *(line.split() for line in ERRORS)]))
    assert done.stdout.splitlines() == [__version__, "code: 0", *["code: 2"] * len(ERRORS), "large:"]
    for line, words in zip(done.stderr.splitlines(), ERRORS.values(), strict=True):
        assert words in line


def test_help_takes_less_than_a_second_of_cpu() -> None:
    before = os.times()
    run(MAIN, "--help")
    after = os.times()
    assert after.children_user - before.children_user < 1.5  # a second, and room for a busy machine


def test_short_help_and_long_help() -> None:
    short, long = invoke("train", "--help"), invoke("train", "--help-all")
    assert len(short.splitlines()) <= 70
    assert "Examples" in short
    options = typer.main.get_command(cli.app).commands["train"].params  # type: ignore[attr-defined]
    assert len(options) <= 25
    for name in ("--model", "--data", "--out", "--mechanism", "--window", "--epochs", "--batch", "--learning-rate"):
        assert name in short
    assert "--max-tokens" in short
    for name in ("--patience", "--freeze-base", "--compile", "warmup_steps="):
        assert name not in short
        assert name in long
    for name in mechanism_names():
        assert name in short
        assert f"--mechanism {name}\n" in long or name == "none"


@pytest.mark.parametrize("command", TRAINING_COMMANDS)
def test_options_come_from_the_settings(command: str) -> None:
    settings = TRAINING_COMMANDS[command]
    shown: Any = typer.main.get_command(cli.app)
    for word in command.split():
        shown = shown.commands[word]
    options = {option.name: option for option in shown.params}
    docs = setting_docs(settings)
    for entry in fields(settings):
        how = declaration(entry)
        assert len(docs[entry.name]) <= 90, entry.name
        assert (entry.name in options) == (how.option and not how.recorded), entry.name
        if entry.name in options:
            assert options[entry.name].help == docs[entry.name]


def test_names_of_run_settings_and_memory_settings_differ() -> None:
    """`--set` takes both."""
    for settings in TRAINING_COMMANDS.values():
        names = {entry.name for entry in fields(settings)}
        for mechanism in mechanism_names():
            assert not names & set(recurrence_config({"mechanism": mechanism}).to_dict())


def test_names_without_torch_are_those_of_the_registry() -> None:
    assert memories.mechanism_names() == mechanism_names()


@pytest.mark.parametrize("mechanism", BUILT_IN)
def test_types_of_settings_without_torch_are_those_of_the_config(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = mechanism_config(mechanism)
    monkeypatch.setattr(registry, "_registered", {})
    assert registry.declared_settings(mechanism) == setting_types(config)


def test_defaults_of_probes_are_those_of_the_settings() -> None:
    shown = {name: parameter.default for name, parameter in signature(probe.probe_a_model).parameters.items()}
    for name in ("distances", "examples", "split", "seed"):
        default = getattr(probe_run.TextProbing, name)
        assert shown[name] == (",".join(map(str, default)) if name == "distances" else default), name
    assert signature(inspecting.inspect_command).parameters["reach"].default == REACH


def test_commands_of_the_papers_are_named_without_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "papers" / "pyproject.toml").read_text())["project"]
    commands = [name for name in project["entry-points"]["recurrify.commands"] if "." not in name]
    assert sorted(commands) == sorted(names.OF_PAPERS)
    for name in commands:
        with pytest.raises(UserError, match=f"`recurrify {name}` comes with the package recurrify-papers"):
            names.Commands(name="recurrify").resolve_command(None, [name])


def test_installed_commands_may_belong_to_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(name, "os:getcwd", "recurrify.commands") for name in ("qa.again", "alone")]
    monkeypatch.setattr(cli, "entry_points", lambda group: points)
    app, group = typer.Typer(), typer.Typer()
    app.add_typer(group, name="qa")
    cli.add_installed_commands(app)
    assert [[one.name for one in each.registered_commands] for each in (app, group)] == [["alone"], ["again"]]


def test_broken_command_of_a_package_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [EntryPoint("broken", "no_such_package:run", "recurrify.commands")]
    points.append(EntryPoint("works", "os:getcwd", "recurrify.commands"))
    monkeypatch.setattr(cli, "entry_points", lambda group: points)
    app = typer.Typer()
    cli.add_installed_commands(app)
    assert [one.name for one in app.registered_commands] == ["works"]
    assert "the command 'broken' of the package 'no_such_package:run' could not be loaded" in capsys.readouterr().err


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings with which `recurrify train` would start."""
    found: dict[str, Any] = {}

    def keep(settings: TrainSettings, say: Any) -> dict[str, Any]:
        found.update(settings.to_dict())
        return {"history": [], "finished": True, "steps": 100}

    monkeypatch.setattr("recurrify.train.finetune.train_run", keep)
    return found


def test_settings_from_a_file_and_the_command_line(collected: dict[str, Any], texts: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        f"model: shipped:base\ndata: {texts}\nbatch: 3\nlearning_rate: 1e-3\nwarmup_steps: 4\n"
        "recurrence: {mechanism: tail, window: 32, tail: 5}\n"
    )
    out = tmp_path / "run"
    invoke("train", "--config", file, "--out", out, "--batch", 5, "--set", "pooled_slots=2", "--set", "schedule=cosine")
    expected = {"model": "shipped:base", "batch": 5, "learning_rate": 1e-3, "warmup_steps": 4, "schedule": "cosine"}
    assert {name: collected[name] for name in expected} == expected
    memory = {"mechanism": "tail", "window": 32, "tail": 5, "pooled_slots": 2, "checkpoint": True}
    assert collected["recurrence"] == memory
    (tmp_path / "run.json").write_text(json.dumps(collected | {"data_checksum": "of another run"}))
    before = dict(collected)
    invoke("train", "--config", tmp_path / "run.json", "--out", out)
    assert collected == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "batch=3"], "`--set batch=…` has an option of its own: use --batch 3"),
        (["--set", "data_checksum=x"], "is recorded by the run"),
        (["--set", "warmup_steps=many"], "`warmup_steps` must be a whole number"),
        (["--set", "tokens"], "A setting is name=value"),
        (["--mechanism", "carry", "--set", "telepathy=1"], "'telepathy'"),
    ],
)
def test_invalid_set_raises(options: list[str], words: str, collected: dict[str, Any], texts: Path) -> None:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(
            cli.app,
            ["train", "--model", "shipped:base", "--data", str(texts), "--out", "x", *options],
            catch_exceptions=False,
        )
    assert words in str(caught.value)
    assert not collected


@pytest.mark.parametrize("content", ["[1, 2]", "a: [", "x: \xff"])
def test_unreadable_config_raises(content: str, refused: Command, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_bytes(content.encode("latin-1"))
    assert "settings.yaml" in refused("train", "--config", tmp_path / "settings.yaml")


def test_commands_silence_third_party_messages() -> None:
    with warnings.catch_warnings():
        cli.common()
    assert transformers_logging.get_verbosity() == logging.ERROR
    assert not transformers_logging.is_progress_bar_enabled()
    assert logging.getLogger("torch").level == logging.getLogger("torchao").level == logging.ERROR


def test_network_that_never_answers_is_reported_before_torch_is_loaded(
    refused: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_access, "SECONDS", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub_access.hub_is_reachable.cache_clear()
    said: list[str] = []
    monkeypatch.setattr(options, "say", said.append)
    try:
        with socket.create_server(("127.0.0.1", 0)) as hole:  # takes connections, but never answers
            monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{hole.getsockname()[1]}")
            assert "check the network connection; the small decoder" in refused("generate", "nowhere", "--prompt", "w5")
        assert said == []
        assert constants.HF_HUB_OFFLINE
    finally:
        hub_access.hub_is_reachable.cache_clear()
