"""The one exception whose message is meant for the person at the keyboard."""


class UserError(ValueError):
    """Bad input, told in one sentence that names the value and the way out.

    The command line prints it without a traceback and exits with 2; in Python it is a plain `ValueError`.
    """
