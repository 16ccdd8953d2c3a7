"""The Hugging Face hub: whether it can be reached, and whether code that comes with a model may run."""

import os
import socket
import sys
import threading
from functools import cache
from urllib.parse import urlsplit

__all__ = ["hub_is_reachable", "trusts_remote_code"]

TRUST = "RECURRIFY_TRUST_REMOTE_CODE"
SECONDS = 4.0
"""How long to wait for a connection; the hub's own retries take more than a minute."""


def trusts_remote_code() -> bool:
    """Whether Python code that comes with a model may run: only if the environment or the command line says so."""
    return os.environ.get(TRUST) == "1"


@cache
def hub_is_reachable() -> bool:
    """Whether the hub can be reached. If not, its libraries use downloaded files only for the rest of the process."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # the proxy answers for the hub
    address = urlsplit(constants.ENDPOINT)
    connected: list[bool] = []
    # In a thread, because looking up a name has no time limit of its own.
    thread = threading.Thread(target=_connect, args=(address.hostname, address.port or 443, connected), daemon=True)
    thread.start()
    thread.join(SECONDS)
    if not connected:
        constants.HF_HUB_OFFLINE = True
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
    return bool(connected)


def _connect(host: str, port: int, connected: list[bool]) -> None:
    try:
        with socket.create_connection((host, port), timeout=SECONDS):
            connected.append(True)
    except OSError:
        pass
