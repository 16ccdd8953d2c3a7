"""The exception whose message is meant for users."""

__all__ = ["UserError"]


class UserError(ValueError):
    """Invalid input, in one sentence that names the value and what to do.

    The command line prints it without a traceback and exits with 2; in Python it is a plain `ValueError`.
    """
