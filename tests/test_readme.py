"""The first Python example of the README runs as it stands, on a tiny model."""

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import logging

from recurrify import RecurrentForCausalLM
from support.runs import model_folder

README = Path(__file__).parent.parent / "README.md"


def test_the_first_python_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks, "the README shows no Python"
    code = blocks[0]
    assert '"gpt2"' in code
    assert '"out"' in code
    base = model_folder(tmp_path / "gpt2", n_positions=1024)
    code = code.replace('"gpt2"', repr(str(base))).replace('"out"', repr(str(tmp_path / "out")))
    logging.set_verbosity_error()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    assert isinstance(names["model"], RecurrentForCausalLM)
    assert names["out"].state is not None
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpt2", "out"]
