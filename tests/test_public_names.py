"""The names of `import recurrify`, which loads them when they are used."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import recurrify
from recurrify import CarryConfig, State
from support.checks import recurrent


def fresh(program: str, *arguments: object) -> list[str]:
    """The lines that a program prints in a new process."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_only_public_names_are_listed() -> None:
    assert sorted(dir(recurrify)) == sorted(recurrify.__all__)
    assert all(hasattr(recurrify, name) for name in recurrify.__all__)


def test_lazy_names_of_packages_are_listed() -> None:
    program = """
import sys
from importlib import import_module
for name in ("data", "mechanisms", "pages", "speed", "train", "attention.kernels"):
    package = import_module(f"recurrify.{name}")
    print(sorted(set(package.__all__) - set(dir(package))))
    assert "__name__" in dir(package)
"""
    assert fresh(program) == ["[]"] * 6


def test_unknown_name_raises() -> None:
    with pytest.raises(AttributeError, match="'recurrify' has no attribute 'carry_config'"):
        _ = recurrify.carry_config


PRINT_AUTO_CLASSES = """
from transformers import AutoConfig, AutoModelForCausalLM
print(type(AutoConfig.from_pretrained(sys.argv[1])).__name__)
print(type(AutoModelForCausalLM.from_pretrained(sys.argv[1])).__name__)
"""
AUTO_CLASSES = ["RecurrentConfig", "RecurrentForCausalLM"]


def test_all_names_are_there_before_torch_is_loaded(tmp_path: Path) -> None:
    """And when transformers is imported later, its Auto classes know recurrent models."""
    recurrent("gpt2").save_pretrained(tmp_path)
    program = """
import sys
import recurrify
listed = dir(recurrify)
assert sorted(listed) == sorted(recurrify.__all__)
print("torch" in sys.modules, "transformers" in sys.modules)
import transformers
"""
    program += PRINT_AUTO_CLASSES
    program += """
print(recurrify.load_model.__name__, recurrify.memory_cost.__name__)
names = {}
exec("from recurrify import *", names)
print(sorted(set(listed) - set(names)))
print(names["State"] is recurrify.State is sys.modules["recurrify.state"].State)
"""
    assert fresh(program, tmp_path) == [
        "False False",
        *AUTO_CLASSES,
        "load_model memory_cost",
        "[]",
        "True",
    ]


def test_pickled_objects_load_without_an_import(tmp_path: Path) -> None:
    """And the Auto classes then know recurrent models."""
    model = recurrent("gpt2")
    model.save_pretrained(tmp_path)
    state = model(torch.arange(4, 24).reshape(2, 10)).state
    file = tmp_path / "pickled"
    file.write_bytes(pickle.dumps((CarryConfig(window=7), recurrify.add_recurrence, state)))
    program = """
import pickle, sys
config, function, state = pickle.load(open(sys.argv[2], "rb"))
print(config.window, function.__name__, type(state).__name__)
"""
    program += PRINT_AUTO_CLASSES
    assert isinstance(state, State)
    assert fresh(program, tmp_path, file) == ["7 add_recurrence State", *AUTO_CLASSES]
