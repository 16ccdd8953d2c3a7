"""The command line. Commands import torch and transformers when they run, so that help is quick."""

from recurrify.cli import options
from recurrify.cli.names import formerly
from recurrify.cli.probe import save_probe
from recurrify.cli.settings import examples, memory_settings, parse_settings, settings_command

__all__ = ["examples", "formerly", "memory_settings", "options", "parse_settings", "save_probe", "settings_command"]
