"""Where files that can be made or downloaded again are kept between runs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache of recurrify: `RECURRIFY_CACHE`, or `recurrify` in `XDG_CACHE_HOME` or `~/.cache`."""
    if chosen := os.environ.get("RECURRIFY_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "recurrify"
