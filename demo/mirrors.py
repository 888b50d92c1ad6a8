"""Two web servers for the demonstration, of which the first damages what it sends; runs a command beside them."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SIZE = 32 << 20


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that has enough closes the connection."""


def handler(data: bytes, *, damages: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(b"", 200, {"Content-Length": str(len(data))})

        def do_GET(self) -> None:
            span = self.headers.get("Range", "bytes=0-").removeprefix("bytes=")
            first, _, last = span.partition("-")
            start, stop = int(first), min(int(last) + 1, len(data)) if last else len(data)
            body = bytearray(data[start:stop])
            if damages:
                body[len(body) // 2] ^= 1
            headers = {"Content-Length": str(len(body)), "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
            self._answer(bytes(body), 206 if "Range" in self.headers else 200, headers)

        def _answer(self, body: bytes, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Accept-Ranges": "bytes", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            return None

    return Handler


def main(card_path: Path, command: list[str]) -> int:
    data = random.Random(7).randbytes(SIZE)
    servers = [Server(("127.0.0.1", 0), handler(data, damages=damages)) for damages in (True, False)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    first, second = (f"http://127.0.0.1:{server.server_port}/field.bin" for server in servers)
    file = {"@type": "FileObject", "name": "field.bin", "contentUrl": first, "mirror": [second]}
    file |= {"contentSize": f"{SIZE} B", "sha256": hashlib.sha256(data).hexdigest()}
    card = {"@context": "https://w3id.org/fairmile/card/1.0/context", "@type": "Dataset", "name": "wind-field"}
    card |= {"version": "1.0", "description": "A wind field on two mirrors, made for this demonstration."}
    card |= {"license": "https://spdx.org/licenses/CC0-1.0", "creator": [{"@type": "Person", "name": "A. Weather"}]}
    card_path.write_text(json.dumps({**card, "distribution": [file]}, indent=1))
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for server in servers:
            server.shutdown()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
