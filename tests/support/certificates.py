"""Certificates that nobody has signed but the tests."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificate:
    """A file with a key and its certificate for localhost, 127.0.0.1 and ::1."""

    file: Path

    def server(self) -> ssl.SSLContext:
        """Return what a server with this certificate speaks TLS with."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.file)
        return tls

    def client(self) -> ssl.SSLContext:
        """Return what a client that trusts this certificate alone speaks TLS with."""
        return ssl.create_default_context(cafile=str(self.file))


def make_certificate(folder: Path) -> Certificate:
    """Make a certificate with openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    file, key = folder / "certificate.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "2", "-subj", "/CN=test", "-keyout", str(key), "-out", str(file)]
    argv += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"]
    subprocess.run(argv, check=True, capture_output=True)
    with open(file, "a", encoding="ascii") as stream:
        stream.write(key.read_text(encoding="ascii"))
    return Certificate(file)
