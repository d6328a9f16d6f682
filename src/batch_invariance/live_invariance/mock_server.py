"""A stand-in for llama-server inside this process, on a free loopback port.

It takes the same requests, truly overlaps them and counts its decodes (see `mock_engine`), and
answers from a digest of the prompt (see `mock_model`). What runs against it is never live.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from batch_invariance.errors import ServerError
from batch_invariance.live_invariance.mock_answer import BatchDivergence, MockBehaviour
from batch_invariance.live_invariance.mock_api import MockApi
from batch_invariance.live_invariance.mock_engine import MockEngine
from batch_invariance.live_invariance.mock_wire import Call, Identity, Reply, error_reply

__all__ = ["BatchDivergence", "MockBehaviour", "MockServer"]

_ACCEPT_POLL_S = 0.02
"""How often the accepting thread looks whether it shall stop: the bound on a stop's length."""


class MockHandler(BaseHTTPRequestHandler):
    """One connection. It announces each request to the engine before it has read it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # A buffered reply leaves in one segment; the base class flushes it.
    wbufsize = -1
    server: MockHttpServer

    def parse_request(self) -> bool:
        """Announce, then parse: a second request on a kept connection has no accept before it."""
        self.server.announce(self.connection)
        return super().parse_request()

    def do_GET(self) -> None:
        """Serve a GET."""
        self._serve()

    def do_POST(self) -> None:
        """Serve a POST."""
        self._serve()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        call = Call(
            method=self.command,
            path=self.path,
            authorization=self.headers.get("Authorization", ""),
            body=body,
            submitted=lambda: self.server.settle(self.connection),
        )
        try:
            reply = self.server.api.handle(call)
        except ServerError as error:
            self.close_connection = True
            reply = error_reply(503, "unavailable_error", str(error))
        finally:
            self.server.settle(self.connection)
        self.deliver(reply)

    def deliver(self, reply: Reply) -> None:
        """Write the reply."""
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def version_string(self) -> str:
        """Name the server as llama-server does."""
        return "llama.cpp"

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""


class MockHttpServer(ThreadingHTTPServer):
    """The listening socket, a thread per connection, and who still owes a request."""

    # A whole wave connects at once.
    request_queue_size = 128
    # `server_close` joins only threads that are no daemons.
    daemon_threads = False

    def __init__(self, port: int, api: MockApi, handler: type[MockHandler]) -> None:
        self.api = api
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, int | None] = {}
        super().__init__(("127.0.0.1", port), handler)

    def server_bind(self) -> None:
        """Bind without looking the host's name up, which may take seconds."""
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection and announce it."""
        connection, address = super().get_request()
        with self._lock:
            self._connections[connection] = None
        self.announce(connection)
        return connection, address

    def announce(self, connection: socket.socket) -> None:
        """Tell the engine that this connection is about to say what it wants."""
        with self._lock:
            if self._connections.get(connection, 0) is None:
                self._connections[connection] = self.api.engine.announce()

    def settle(self, connection: socket.socket) -> None:
        """Tell the engine that this connection has said what it wants."""
        with self._lock:
            number = self._connections.get(connection)
            if number is not None:
                self._connections[connection] = None
                self.api.engine.withdraw(number)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection and close it."""
        self.settle(request)
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Shut every open connection, so that its thread ends."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent when a client goes away in the middle."""


class MockServer:
    """A mock llama-server: `with MockServer(parallel=4, ctx=2048) as server: server.port`.

    `parallel`: number of slots. `ctx`: the context of one slot, in tokens. `api_key`: None leaves
    every route open. Leaving the `with` block ends its threads and frees its port.
    """

    handler_class: type[MockHandler] = MockHandler

    def __init__(
        self,
        parallel: int,
        ctx: int,
        behaviour: MockBehaviour | None = None,
        api_key: str | None = None,
        port: int = 0,
    ) -> None:
        self.identity = Identity(slots=parallel, slot_ctx=ctx, api_key=api_key)
        self.engine = self.build_engine(behaviour or MockBehaviour())
        self.api = self.build_api()
        self._http = MockHttpServer(port, self.api, self.handler_class)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_ACCEPT_POLL_S,), name="mock-http", daemon=True
        )

    def build_engine(self, behaviour: MockBehaviour) -> MockEngine:
        """Make the engine."""
        return MockEngine(self.identity.slots, behaviour)

    def build_api(self) -> MockApi:
        """Make the surface over the engine."""
        return MockApi(self.engine, self.identity)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._http.server_port

    def start(self) -> None:
        """Start to serve."""
        self.engine.start()
        self._thread.start()

    def stop(self) -> None:
        """End all requests, all threads and the socket."""
        self._http.shutdown()
        self._thread.join()
        self.engine.stop()
        self._http.hang_up()
        self._http.server_close()

    def __enter__(self) -> MockServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
