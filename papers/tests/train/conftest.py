"""Text that the training runs of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import logging

from support.runs import text_folder


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_folder(tmp_path_factory.mktemp("data") / "texts")
