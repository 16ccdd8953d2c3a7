"""The Hugging Face hub: whether it can be reached, and whether code that comes with a model may run."""

import os
import sys
import threading
from contextlib import suppress
from functools import cache

__all__ = ["hub_is_reachable", "is_downloaded", "trusts_remote_code"]

TRUST = "RECURRIFY_TRUST_REMOTE_CODE"
SECONDS = 3.0
"""How long to wait for an answer; the hub's own retries take more than a minute."""


def trusts_remote_code() -> bool:
    """Whether Python code that comes with a model may run: only if the environment or the command line allows it."""
    return os.environ.get(TRUST) == "1"


def is_downloaded(name: str) -> bool:
    """Whether a model of the hub was downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


@cache
def hub_is_reachable() -> bool:
    """Whether the hub answers. If not, its libraries use downloaded files only for the rest of the process."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()
    # In a thread, because looking up a name has no time limit of its own.
    thread = threading.Thread(target=_ask, args=(constants.ENDPOINT, answered), daemon=True)
    thread.start()
    thread.join(SECONDS)
    if not answered.is_set():
        constants.HF_HUB_OFFLINE = True
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
    return answered.is_set()


def _ask(address: str, answered: threading.Event) -> None:
    """Any answer counts. The hub's own session knows proxies and certificates."""
    from huggingface_hub import get_session

    with suppress(Exception):  # of dozens of types
        get_session().head(address, timeout=SECONDS)
        answered.set()
