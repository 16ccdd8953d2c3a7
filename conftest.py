"""Settings of all tests: one thread, fixed seeds, a cache of their own, few garbage collections."""

import gc
import os
import signal
from collections.abc import Iterator
from functools import cache

import pytest

# The process that starts the test workers does not need torch, which takes seconds to import: fixtures import it.


def pytest_collection_finish() -> None:
    """Exclude objects that exist before the first test from garbage collection, and collect less often.

    Training and benchmarks collect often; with all libraries loaded, a collection takes longer than a step of a tiny
    model. Tiny models make little garbage, and tracing makes many objects, each of which counts towards a collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """In the tests and in the programs that they start: tiny models run fastest on one thread."""
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_records() -> Iterator[None]:
    """Ask git once what runs record of it, and do not wait for the disk: hundreds of tests train for a second."""
    from recurrify import results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "git_state", cache(results.git_state))
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_products() -> Iterator[None]:
    from recurrify.speed.products import quick_products

    with quick_products():
        yield


@pytest.fixture(scope="session", autouse=True)
def _hears_ctrl_c() -> None:
    """A shell that runs tests in the background starts them with SIGINT ignored; tests of Ctrl-C need it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded():
    import torch

    torch.manual_seed(0)
