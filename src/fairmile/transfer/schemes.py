"""The schemes of addresses, and which fetcher serves each."""

from __future__ import annotations

# Which fetcher serves the scheme of an address; those of declared commands and of entry points come on top.
SCHEMES = {
    "http": "http",
    "https": "http",
    "ftp": "ftp",
    "ftps": "ftp",
    "file": "file",
    "ssh": "ssh",
    "scp": "ssh",
    "sftp": "ssh",
    "rsync": "rsync",
    "rsync+ssh": "rsync",
    "s3": "s3",
    "s3+https": "open_s3",
    "s3+http": "open_s3",
    "git": "git",
    "git+https": "git",
    "git+http": "git",
    "git+ssh": "git",
    "git+file": "git",
    "globus": "globus",
    "hf": "huggingface",
    "zenodo": "zenodo",
    "doi": "zenodo",
    "openml": "openml",
    "pypi": "pypi",
    "npm": "npm",
    "conda": "conda",
    "docker": "docker",
    "data": "data",
    "list+https": "file_list",
    "list+http": "file_list",
    "list+file": "file_list",
}


def scheme_of(address: str) -> str:
    """Return the scheme of an address, in lower case; empty where it has none."""
    head, colon, _ = address.partition(":")
    is_scheme = colon and head[:1].isalpha() and head.replace("+", "").replace("-", "").replace(".", "").isalnum()
    return head.lower() if is_scheme and head.isascii() else ""
