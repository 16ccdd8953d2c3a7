"""The example of docs/extending/mechanism.md works as an installed package; `test_docs.py` runs the page."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from transformers import AutoModelForCausalLM

from recurrify import MechanismConfig, UserError, add_recurrence, mechanism_names
from recurrify.mechanisms import mechanism_config, recurrence_config, registry
from support.faults import run_command
from support.models import text, tiny
from support.runs import question_file

PAGE = Path(__file__).parent.parent / "docs" / "extending" / "mechanism.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with an installed third-party package."""
    folder = tmp_path / "site"
    (folder / "their_package-1.0.dist-info").mkdir(parents=True)
    (folder / "their_package.py").write_text(BLOCKS[0])
    about = folder / "their_package-1.0.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[recurrify.mechanisms]\nlast_state = their_package:LastStateConfig\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(registry, "_registered", {})
    yield folder
    sys.modules.pop("their_package", None)


def test_installed_package_works_in_python(package: Path, tmp_path: Path) -> None:
    assert len(BLOCKS[0].splitlines()) <= 50
    assert "last_state" in mechanism_names()
    config = recurrence_config({"mechanism": "last_state", "window": 8, "layer": 3})
    assert mechanism_config("last_state") is type(config)
    model = add_recurrence(tiny("gpt2"), config)
    model.save_pretrained(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert loaded.recurrence == config
    assert (loaded(text(2, 20)).logits == model(text(2, 20)).logits).all()


def test_installed_package_works_on_the_command_line(package: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "text.txt", tmp_path / "run"
    data.write_text("def add(one, other):\n    return one + other\n" * 60)
    command = ["train", "--model", "shipped:base", "--data", data, "--valid", data, "--out", out]
    command += ["--mechanism", "last_state", "--set", "layer=2"]
    command += ["--window", "16", "--windows", "2", "--batch", "2", "--max-tokens", "128"]
    ended = run_command(command, tmp_path)
    assert ended.code == 0, ended.said
    recurrence = json.loads((out / "model" / "config.json").read_text())["recurrence"]
    assert (recurrence["mechanism"], recurrence["layer"]) == ("last_state", 2)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('not today')", "'their-package' could not be loaded .*not today"),
        ("LastStateConfig = 3", "must name a MechanismConfig with mechanism = 'last_state'"),
    ],
)
def test_broken_package_raises_one_sentence(package: Path, source: str, message: str) -> None:
    (package / "their_package.py").write_text(source)
    with pytest.raises(UserError, match=message):
        recurrence_config({"mechanism": "last_state"})


def test_broken_package_breaks_no_command_that_does_not_use_it(package: Path, tmp_path: Path) -> None:
    (package / "their_package.py").write_text("raise RuntimeError('not today')")
    listed = run_command(["train", "--help-all"], tmp_path)
    assert listed.code == 0, listed.said
    assert listed.said.count("not today") == 1
    assert "--mechanism tail" in listed.said
    question_file(tmp_path / "towns.json")
    asked = ["qa", "train", "--model", "shipped:base", "--data", tmp_path / "towns.json", "--out", tmp_path / "out"]
    for mechanism, times in {"carry": 0, "kv": 1}.items():
        ended = run_command([*asked, "--mechanism", mechanism], tmp_path)
        assert ended.said.count("not today") == times, ended.said
    assert "'kv' is for decoders only: an encoder can have carry, compress" in ended.said


def test_unknown_mechanism_raises() -> None:
    with pytest.raises(
        UserError, match=r"Unknown mechanism 'no_such': known are carry, compress.*package of any other"
    ):
        recurrence_config({"mechanism": "no_such"})


@dataclass(frozen=True, kw_only=True)
class Nothing(MechanismConfig):
    mechanism: ClassVar[str] = "nothing"

    def build(self, layers: int, width: int) -> None:
        return None


def test_build_that_returns_nothing_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    with pytest.raises(UserError, match=r"Nothing\.build returned None"):
        add_recurrence(tiny("gpt2"), Nothing(window=8))


def test_class_that_is_no_dataclass_raises() -> None:
    class Undecorated(MechanismConfig):
        mechanism = "undecorated"
        layer: int = 2

    with pytest.raises(UserError, match=r"Undecorated is not a dataclass: add @dataclass"):
        registry.register_mechanism(Undecorated)


def test_class_that_is_defined_again_replaces_the_former_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    for _ in range(2):
        defined: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(BLOCKS[0], "notebook", "exec", dont_inherit=True), defined)
        model = add_recurrence(tiny("gpt2"), defined["LastStateConfig"](window=8))
        assert type(model.recurrence) is defined["LastStateConfig"]
    other = type("Other", (defined["LastStateConfig"],), {})
    with pytest.raises(UserError, match="Other has the name 'last_state' of another mechanism, LastStateConfig"):
        add_recurrence(tiny("gpt2"), other(window=8))


def test_names_cost_no_import_of_torch() -> None:
    program = "import sys, recurrify.mechanisms as m; m.mechanism_names(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
