"""Tiny models run fastest on one thread, a test must not depend on the tests before it, nor touch the user's cache."""

import signal
from collections.abc import Iterator

import pytest
import torch

from recurrify.products import quick_products


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _quick_products() -> Iterator[None]:
    with quick_products():
        yield


@pytest.fixture(scope="session", autouse=True)
def _hears_ctrl_c() -> None:
    """A shell that runs tests in the background tells them to ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
