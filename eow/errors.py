"""The one exception that is meant for the user: a sentence that says what is wrong, where, and what to do."""


class EowError(ValueError):
    """Something the caller can put right. The command line prints it as one line and exits with code 2."""
