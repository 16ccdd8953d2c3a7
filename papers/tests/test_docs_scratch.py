"""docs/reproductions/scratch.md: its tables match the settings of the architectures, and its examples run."""

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from recurrify.attention import RSAConfig
from recurrify_papers.models.language import ARCHITECTURES, RSA_PREFIX, Architecture
from support.commands import invoke

PAGE = Path(__file__).parents[2] / "docs" / "reproductions" / "scratch.md"
ABSENT = "–"


def documented_settings() -> dict[str, dict[str, str]]:
    """Defaults in the tables by architecture and setting."""
    found: dict[str, dict[str, str]] = {name: {} for name in ARCHITECTURES}
    header: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] == "setting":
            header = cells
        elif not cells:
            header = []
        elif header and cells[0].startswith("`"):
            for names, value in zip(header[1:-1], cells[1:-1], strict=True):
                for arch in re.findall(r"`([^`]+)`", names):
                    if value != ABSENT:
                        found[arch][cells[0].strip("`")] = value
    return found


def default_of(architecture: Architecture, name: str) -> str:
    value: Any
    if name.startswith(RSA_PREFIX):
        own, recurrence = name.removeprefix(RSA_PREFIX), architecture.recurrence or {}
        value = recurrence[own] if own in recurrence else RSAConfig.__dataclass_fields__[own].default
    else:
        value = architecture.defaults.get(name, architecture.config.__dataclass_fields__[name].default)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_settings_and_defaults(arch: str) -> None:
    architecture = ARCHITECTURES[arch]
    names = [name for name in architecture.settings() if name != "target_length"]
    assert documented_settings()[arch] == {name: default_of(architecture, name) for name in names}


def test_every_architecture_is_described() -> None:
    first = PAGE.read_text(encoding="utf-8").split("## ")[0]
    rows = [line.split("|")[1] for line in first.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} - {"--arch"} == set(ARCHITECTURES)


def shown_in(section: str, language: str = "") -> list[str]:
    """The blocks of code below a heading."""
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    assert found, f"{PAGE.name} has no section {section!r}"
    return re.findall(rf"^```{language}\n(.*?)^```", rest.split("\n## ")[0], re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's first command, with two steps on another text."""
    folder = tmp_path_factory.mktemp("scratch")
    text = folder / "text.txt"
    text.write_text("".join(f"{number} times {number} is {number * number}.\n" for number in range(1000)))
    (command,) = shown_in("A small model on a CPU")
    arguments = shlex.split(command.replace("runs/small", str(folder / "runs" / "small")))[1:]
    other = {"--data": text, "--steps": 2, "--valid-tokens": 40, "--test-tokens": 40}
    for option, value in other.items():
        arguments[arguments.index(option) + 1] = value
    invoke(*arguments)
    return folder


def test_size_of_the_small_model(small_run: Path) -> None:
    result = json.loads((small_run / "runs" / "small" / "result.json").read_text())
    assert f"{result['parameters']:,} parameters" in PAGE.read_text(encoding="utf-8")


def test_python_examples(small_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(small_run)
    found: list[dict[str, Any]] = []
    for number, code in enumerate(shown_in("In Python", "python")):
        found.append({})
        exec(compile(code, f"{PAGE} {number}", "exec"), found[-1])
    _, model, trained, decoder = found
    assert model["state"].memory.shape == (2, 2, 32, 64)
    assert trained["score"]["symbols"] == len(Path("other.txt").read_bytes()) - 1
    assert decoder["out"].state is not None
    said = capsys.readouterr()
    nats = next(float(line.split()[0]) for line in said.out.splitlines() if "nats per byte" in line)
    # After two steps the model is close to guessing one byte of 256.
    assert math.log(256) - 2 < nats < math.log(256) + 1
