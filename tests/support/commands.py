"""Running the command line inside a test."""

from typer.testing import CliRunner

from recurrify import cli

TRAINING = ["--window", "8", "--windows", "3", "--batch", "4", "--learning-rate", "0.01", "--warmup-steps", "2"]
BUDGET = ["--max-tokens", "500", "--valid-every", "150"]


def invoke(*arguments: object) -> str:
    """Run a command that should succeed; gives what it wrote to stdout."""
    found = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.stderr
    return found.stdout
