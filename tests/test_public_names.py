"""What `import recurrify` shows, and what it does though it loads little at first."""

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
    """The lines that a program writes in a process of its own."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_only_what_is_for_users_is_listed() -> None:
    assert sorted(dir(recurrify)) == sorted(recurrify.__all__)
    assert all(hasattr(recurrify, name) for name in recurrify.__all__)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="'recurrify' has no attribute 'carry_config'"):
        _ = recurrify.carry_config


TELL_AUTO_CLASSES = """
from transformers import AutoConfig, AutoModelForCausalLM
print(type(AutoConfig.from_pretrained(sys.argv[1])).__name__)
print(type(AutoModelForCausalLM.from_pretrained(sys.argv[1])).__name__)
"""
AUTO_CLASSES = ["RecurrentConfig", "RecurrentForCausalLM"]


def test_before_anything_is_loaded_all_names_are_there(tmp_path: Path) -> None:
    """And when transformers is loaded later, its Auto classes know recurrent models."""
    recurrent("gpt2").save_pretrained(tmp_path)
    program = """
import sys
import recurrify
listed = dir(recurrify)
assert sorted(listed) == sorted(recurrify.__all__)
print("torch" in sys.modules, "transformers" in sys.modules)
import transformers
"""
    program += TELL_AUTO_CLASSES
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


def test_auto_classes_know_recurrent_models(tmp_path: Path) -> None:
    """With transformers first, too; of recurrify nothing was asked for."""
    recurrent("gpt2").save_pretrained(tmp_path)
    program = f"import sys, transformers, recurrify{TELL_AUTO_CLASSES}"
    assert fresh(program, tmp_path) == AUTO_CLASSES


def test_what_was_pickled_is_read_where_nothing_was_imported(tmp_path: Path) -> None:
    """And by that, too, Auto classes know recurrent models."""
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
    program += TELL_AUTO_CLASSES
    assert isinstance(state, State)
    assert fresh(program, tmp_path, file) == ["7 add_recurrence State", *AUTO_CLASSES]
