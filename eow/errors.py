"""The one exception that is meant for the user: a sentence that says what is wrong, where, and what to do."""

from eow.plain import printable


class EowError(ValueError):
    """Something the caller can put right. The command line prints it as one line and exits with code 2.

    A sentence may quote a file: whatever is in there, the sentence stays one line that commands no terminal.
    """

    def __init__(self, sentence: object = "") -> None:
        super().__init__(printable(str(sentence)))
