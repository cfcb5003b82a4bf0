"""The page on this machine's own address, for as long as the command runs. Nothing but the page is handed out."""

import webbrowser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from eow.console import console
from eow.errors import EowError
from eow.storage import unreadable

HOST = "127.0.0.1"
PORTS = range(8000, 8020)  # tried in turn where none is asked for


def serve(folder: str | Path, port: int | None = None, open_browser: bool = True) -> None:
    """Show folder/index.html until Ctrl-C. A port that is asked for is used or refused; 0 takes any that is free."""
    with make_server(Path(folder), port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        console.print(f"the page is at {address} (Ctrl-C ends it)")
        if open_browser:
            webbrowser.open(address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print("\nended")


def make_server(folder: Path, port: int | None) -> ThreadingHTTPServer:
    """A server that listens already and answers once `serve_forever` is called."""
    try:
        page = (folder / "index.html").read_bytes()
    except FileNotFoundError:
        raise EowError(
            f"there is no index.html in {folder}: build the page first, `eow demo --build {folder}`"
        ) from None
    except OSError as error:
        raise unreadable(folder / "index.html", error) from None
    if port is not None and not 0 <= port <= 65535:
        raise EowError(f"there is no port {port}: give a number from 1 to 65535, or 0 for any free one")
    for number in PORTS if port is None else (port,):
        try:
            return ThreadingHTTPServer((HOST, number), handler_of(page))
        except OSError as error:
            reason = error.strerror or str(error)
    if port is None:
        raise EowError(f"none of the ports {PORTS[0]} to {PORTS[-1]} can be had ({reason}): name another")
    raise EowError(f"port {port} cannot be had ({reason}): name another, or none to take the next free one")


def handler_of(page: bytes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/index.html"):
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Cache-Control", "no-store")  # the next build of the page has the same address
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(page)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not worth a line in somebody's terminal."""

    return Handler
