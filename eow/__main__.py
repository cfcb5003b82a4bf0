"""`python -m eow` is `eow`."""

from eow.cli import main

main()
