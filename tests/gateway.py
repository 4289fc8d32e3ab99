"""A Pushgateway for tests: an HTTP server that parses the metrics pushed to it as Prometheus does."""

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
    """Yield the address and the list of requests: (method, path, headers, samples)."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            requests.append((self.command, self.path, dict(self.headers), samples(body)))
            self.send_response(status)
            self.end_headers()

        do_PUT = do_POST

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def no_gateway():
    """Yield the address of a server that does not speak HTTP, and the first lines of the requests."""
    requests = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            requests.append(self.rfile.readline())
            self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()
