"""What only shows words loads none of the large libraries, and shows what the code has."""

import subprocess
import sys
from inspect import signature
from typing import Any

import pytest

from recurrify import known_names
from recurrify.cli import inspect as inspecting
from recurrify.cli import main as cli
from recurrify.cli import probe
from recurrify.data.documents import CORPORA
from recurrify.data.probes import SYMBOL_PROBES
from recurrify.data.probes_text import TEXT_PROBES
from recurrify.evaluate import probe_run as probing
from recurrify.evaluate.inspection import REACH
from recurrify.mechanisms.base import mechanism_names
from recurrify.modeling.loading import shipped_names
from recurrify_papers import bench, experiments
from recurrify_papers.bench import bench as bench_state
from recurrify_papers.models.language import ARCHITECTURES
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.symbols import ALPHABETS

LARGE = ("torch", "transformers", "datasets", "pandas", "numpy", "scipy", "sklearn", "matplotlib")
TELL = f"""
import sys

def tell_large():
    print("large:", *(name for name in {LARGE} if name in sys.modules))
"""
ALL_HELP = f"""{TELL}
import typer
from typer.testing import CliRunner
from recurrify import cli

def show(command, words):
    found = CliRunner().invoke(cli.app, [*words, "--help"])
    assert found.exit_code == 0, found.output
    print("shown:", *words)
    for name, inner in getattr(command, "commands", {{}}).items():
        show(inner, [*words, name])

show(typer.main.get_command(cli.app), [])
tell_large()
"""
MAIN = f"""{TELL}
from recurrify import cli

try:
    cli.main()
finally:
    tell_large()
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)


def defaults(command: Any) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in signature(command).parameters.items()}


def test_no_page_of_help_loads_a_large_library() -> None:
    done = run(ALL_HELP)
    assert done.returncode == 0, done.stderr
    *shown, large = done.stdout.splitlines()
    assert large == "large:"
    assert {"shown:", "shown: train", "shown: forecast table1", "shown: probe model"} <= set(shown)
    assert len(shown) > 30


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--version"], 0, cli.__version__),
        (["train", "--no-such-option"], 2, "No such option"),
        (["train", "--data", "a", "--out", "b"], 2, "Error: Say what to train"),
        (["generate", "a"], 2, "Error: Give the text to go on from"),
        (["forecast", "train", "--data", "a", "--out", "b", "--model", "prophet"], 2, "must be one of"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_nor_do_the_version_and_quick_refusals(arguments: list[str], code: int, said: str) -> None:
    done = run(MAIN, *arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "large:"


def test_a_command_that_runs_quietens_transformers() -> None:
    """Which it has not loaded yet when it begins."""
    program = f"""{TELL}
from recurrify import cli

cli.common()
tell_large()
from transformers import logging
print(logging.get_verbosity() == logging.ERROR, logging.is_progress_bar_enabled())
"""
    done = run(program)
    assert done.stdout.splitlines() == ["large:", "True False"], done.stderr


@pytest.mark.parametrize(
    ("listed", "there"),
    [
        (known_names.MECHANISMS, mechanism_names()),
        (known_names.SHIPPED, shipped_names()),
        (known_names.CORPORA, CORPORA),
        (known_names.ALPHABETS, ALPHABETS),
        (known_names.ARCHITECTURES, ARCHITECTURES),
        (known_names.TEXT_PROBES, TEXT_PROBES),
        (known_names.SYMBOL_PROBES, SYMBOL_PROBES),
        (known_names.PROBED_SIZES.items(), probing.SCRATCH_SIZES.items()),
        ([known_names.PROBED_WINDOW], [probing.SYMBOLS_WINDOW]),
        ([known_names.PROBED_REPETITIONS], [probing.SymbolTraining.repetitions]),
        (known_names.BENCH_KINDS, bench.KINDS),
        (known_names.USUAL_BENCH_KINDS, bench.USUAL_KINDS),
        (known_names.BENCH_WAYS, bench_state.WAYS),
        (known_names.BENCH_PARTS.items(), [(name, part.purpose) for name, part in bench.PARTS.items()]),
        (known_names.BENCH_SIZES.items(), [(name, size.purpose) for name, size in bench.SIZES.items()]),
        (known_names.BEYOND, experiments.BEYOND),
        (known_names.EXPERIMENT_SIZES.items(), [(name, size.purpose) for name, size in experiments.SIZES.items()]),
    ],
)
def test_what_help_lists_is_what_there_is(listed: Any, there: Any) -> None:
    assert list(listed) == list(there)


def test_defaults_that_help_shows_are_those_of_the_settings() -> None:
    train = defaults(cli.train_command)
    for name in ("symbols", "steps", "length", "clip", "weight_decay", "speed"):
        assert train[name] == getattr(ScratchSettings, name), name
    probed = defaults(probe.train)
    for name in ("task", "windows", "examples", "steps", "batch", "learning_rate", "growth"):
        assert probed[name] == getattr(probing.SymbolTraining, name), name
    assert defaults(inspecting.inspect_command)["reach"] == REACH
