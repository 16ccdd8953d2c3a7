"""Fixtures that several folders of tests share: their conftest imports them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import logging

from support.runs import model_folder, text_folder


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base model."""
    return model_folder(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text for trainings in Python."""
    return text_folder(tmp_path_factory.mktemp("data") / "texts")


@pytest.fixture(scope="session")
def many_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text for commands and experiments, which also score it."""
    return text_folder(tmp_path_factory.mktemp("data") / "texts", documents=60)
