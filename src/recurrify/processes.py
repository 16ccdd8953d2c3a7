"""For work that is done side by side: a pool of processes, and one thread for each."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import torch

from recurrify.ending_with_parent import end_with_parent


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """They end with this process however it ends, and what has not begun by the end of the block is not begun."""
    # Spawned: a process that has threads cannot safely be forked.
    pool = ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=end_with_parent, initargs=(os.getpid(),)
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Small matrices gain little from a second one, and lose much by it where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
