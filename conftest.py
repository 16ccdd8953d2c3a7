"""Tiny models run fastest on one thread, a test must not depend on the tests before it, nor touch the user's cache."""

import gc
import signal
from collections.abc import Iterator

import pytest

# What starts the processes in which tests run has no use for torch, which takes seconds to import: fixtures import it.


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: garbage is looked for among what comes after it alone.

    Training and benchmarks ask for that often, and among all the libraries it takes longer than a tiny model's steps.
    Unasked it is looked for less often than usual: tiny models leave little, and tracing makes many objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Here, and in programs that tests start."""
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_products() -> Iterator[None]:
    from recurrify.speed.products import quick_products

    with quick_products():
        yield


@pytest.fixture(scope="session", autouse=True)
def _hears_ctrl_c() -> None:
    """A shell that runs tests in the background tells them to ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded():
    import torch

    torch.manual_seed(0)
