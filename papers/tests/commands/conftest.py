"""A model and text for commands, each made once."""

from pathlib import Path

import pytest

from support.commands import refused, transformers_as_before
from support.runs import model_folder, text_folder

__all__ = ["refused", "transformers_as_before"]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_folder(tmp_path_factory.mktemp("data") / "texts", documents=60)
