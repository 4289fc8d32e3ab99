"""A Pushgateway for tests: a real HTTP server that reads what it is sent as Prometheus would."""

import socketserver
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict:
    """Values by name and labels."""
    return {(sample.name.removeprefix("dare_job_"), *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


@contextmanager
def gateway(status: int = 200):
    """A Pushgateway's address, and what came in: (method, path, headers, samples)."""
    came = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            came.append((self.command, self.path, dict(self.headers), samples(body)))
            self.send_response(status)
            self.end_headers()

        do_PUT = do_POST

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", came
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def no_gateway():
    """Address of a server that answers every request with a line that is no HTTP, and who asked."""
    came = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            came.append(self.rfile.readline())
            self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", came
        finally:
            server.shutdown()
