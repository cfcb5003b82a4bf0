"""A page to play with: draw a digit or anything else, and a plain and an EOW network answer as you draw.

build(folder)   trains both networks and writes folder/index.html: one file that fetches nothing
serve(folder)   shows that file on this machine
"""

from eow.play.page import build
from eow.play.server import serve

__all__ = ["build", "serve"]
