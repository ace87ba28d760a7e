"""Ways to ask a running job for a trace: a signal, or an HTTP request, where the caller of `profile` chose one."""

import json
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REQUEST_SECONDS = 5.0
LOCAL = ("127.0.0.1", "localhost", "[::1]")


class SignalRequests:
    """While open, a signal asks for a trace; a handler that was there before is called too."""

    def __init__(self, number: int, ask: Callable[[str], None]) -> None:
        self._number, self._ask = number, ask
        self._previous: Any = None
        self._ours: Any = None

    def open(self) -> None:
        """Install the handler; raises ValueError on a thread other than the main one, where Python refuses it."""
        previous = signal.getsignal(self._number)

        def asked(number: int, frame: Any) -> None:
            self._ask(f"signal {signal.Signals(number).name}")
            if callable(previous):
                previous(number, frame)

        signal.signal(self._number, asked)
        self._previous, self._ours = previous, asked

    def close(self) -> None:
        """Restore the handler that was there, unless the job has set another one since."""
        if self._ours is not None and signal.getsignal(self._number) is self._ours:
            signal.signal(self._number, self._previous if self._previous is not None else signal.SIG_DFL)
        self._ours = None


class HttpRequests:
    """While open, `POST /record` to `host:port` asks for a trace."""

    def __init__(self, address: str, ask: Callable[[str], None]) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._ask = (host, int(port)), ask
        self._server: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int | None:
        """The port that is listened to, while open."""
        return self._server.server_address[1] if self._server is not None else None

    def open(self) -> None:
        """Listen; raises OSError where the address is taken."""
        ask, allowed = self._ask, {*LOCAL, self._address[0]}

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_SECONDS

            def do_POST(self) -> None:
                host = self.headers.get("Host", "").rsplit(":", 1)[0]
                if host not in allowed:  # a page of a browser that reached us under another name
                    self._answer(403, f"this server answers to {', '.join(sorted(allowed))}")
                elif self.path != "/record":
                    self._answer(404, "POST /record asks for a trace")
                else:
                    ask(f"HTTP request of {self.client_address[0]}")
                    self._answer(202, "a trace will be recorded once the ranks have agreed on its step")

            def do_GET(self) -> None:
                self._answer(405, "POST /record asks for a trace")

            def _answer(self, status: int, text: str) -> None:
                body = json.dumps({"status": text}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Print nothing: the job's output is its own."""

        self._server = ThreadingHTTPServer(self._address, Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="overlapscope-http", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
