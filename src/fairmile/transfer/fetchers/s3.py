"""s3://BUCKET/KEY and s3://BUCKET/FOLDER/: Amazon S3 and compatible stores, signed where the user has credentials."""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import field
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any, NoReturn
from urllib.parse import quote, unquote_plus, urlencode, urlsplit

from fairmile.base.digest import Checksum
from fairmile.base.errors import FairmileError, Integrity, MissingExtra, NotFound, SystemFailure, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.credentials import Credentials, shown_address
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Body, Context, Remote
from fairmile.transfer.wire import Head

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_HOST_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")  # a dot would not match Amazon's certificate
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_IN_PARTS = re.compile(r'-[0-9]+"$')
_MD5 = re.compile(r'"([0-9a-f]{32})"')
_CHECKSUM_BYTES = {"sha256": 32, "sha1": 20, "crc32c": 4}
_FIRST_REGION = "us-east-1"
_NONE: Mapping[str, str] = {}
_REFUSED = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
)


class S3:
    """Finds and reads objects; every request is signed on its own, so that no signature can run out on the way."""

    def __init__(self, context: Context, *, open_endpoint: str = "") -> None:
        """Read from Amazon or the service that settings name; with `open_endpoint` from there, without credentials."""
        self.client = Client(context)
        self._context = context
        self._open_endpoint = open_endpoint
        self._account: _Account | None = _Account(endpoint=open_endpoint) if open_endpoint else None
        self._places: dict[str, BucketLocation] = {}
        self._lock = threading.Lock()

    def find(self, address: str) -> list[Remote]:
        """Return the object with exactly this key, else all objects below it as a folder.

        The checksums that S3 keeps are known for a single object only: a listing does not tell them.
        """
        bucket, key = parse_address(address)
        status = 404
        if key and not key.endswith("/"):
            head, _ = self._ask("HEAD", bucket, key, headers={"x-amz-checksum-mode": "ENABLED"})
            status = head.status
            if status == 200:
                return [_remote_of_head(address, key, head.headers, is_amazon=self._place(bucket).is_amazon)]
        folder = key if not key or key.endswith("/") else f"{key}/"
        remotes = list(self._below(bucket, folder, address))
        if remotes:
            return remotes
        if status == 404:
            raise NotFound(f"no object and no folder {address}", hint="check it with `aws s3 ls`")
        raise self._failure(address, status, b"")

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        """Open the bytes from `start` up to, without, `stop`."""
        bucket, key = parse_address(remote.address)
        url, headers = self._signed("GET", bucket, key)
        try:
            # An object's encoding is a note of whoever stored it; its size and ETag are those of the packed bytes.
            return self.client.open(url, start, stop, headers=headers, validator=remote.validator, decode=False)
        except (SystemFailure, NotFound) as error:
            # Only the document that comes with a refusal says why; one byte asked for again brings it.
            head, body = self._ask("GET", bucket, key, headers={"Range": "bytes=0-0"})
            if head.status < 400:
                raise
            raise self._failure(remote.address, head.status, body) from error

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.client.close()

    def _below(self, bucket: str, folder: str, address: str) -> Iterator[Remote]:
        token, seen = "", set[str]()
        while token not in seen:
            seen.add(token)
            query = {"list-type": "2", "prefix": folder, "encoding-type": "url"}
            if token:
                query["continuation-token"] = token
            head, body = self._ask("GET", bucket, "", query)
            if head.status != 200:
                raise self._failure(address, head.status, body)
            page = read_listing(body, bucket, folder)
            yield from page.remotes
            token = page.next
            if not token:
                return
        raise SystemFailure(f"the listing of {address} repeats and never ends")

    def _ask(
        self,
        method: str,
        bucket: str,
        key: str,
        query: Mapping[str, str] = _NONE,
        *,
        headers: Mapping[str, str] = _NONE,
    ) -> tuple[Head, bytes]:
        url, signed = self._signed(method, bucket, key, query, headers)
        return self.client.ask(method, url, signed)

    def _signed(
        self,
        method: str,
        bucket: str,
        key: str,
        query: Mapping[str, str] = _NONE,
        headers: Mapping[str, str] = _NONE,
    ) -> tuple[str, Mapping[str, str]]:
        place = self._place(bucket)
        url = f"{place.url}/{quote(key, safe='-_.~/')}"
        if query:
            url += "?" + urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
        assert self._account is not None
        return url, self._account.signed(method, url, headers, place.region)

    def _place(self, bucket: str) -> BucketLocation:
        """Return where a bucket is reached, asked once."""
        with self._lock:
            if self._account is None:
                self._account = _account(self._context.environ, self._context.credentials)
            if bucket not in self._places:
                own = self._open_endpoint or self._context.settings.s3_endpoint or self._account.endpoint
                region = self._account.region
                self._places[bucket] = other_place(own, bucket, region) if own else self._amazon(bucket, region)
            return self._places[bucket]

    def _amazon(self, bucket: str, region: str) -> BucketLocation:
        # Whoever asks, Amazon says with any answer in which region a bucket lies.
        head, body = self.client.ask("HEAD", amazon_place(bucket, region or _FIRST_REGION, by_path=True).url, {})
        stated = head.headers.get("x-amz-bucket-region", "")
        if head.status == 404:
            raise self._failure(f"s3://{bucket}", 404, body)
        return amazon_place(bucket, stated if _REGION.fullmatch(stated) else region or _FIRST_REGION)

    def _failure(self, address: str, status: int, body: bytes) -> FairmileError:
        try:
            fields = _read_xml(body).fields if body else {}
        except Integrity:
            fields = {}
        is_signed = self._account is not None and self._account.has_credentials
        return failure_of(shown_address(address), status, fields, is_signed=is_signed)


# Addresses and places


class BucketLocation(NamedTuple):
    """Where a bucket is reached: its address without a slash at the end, and the region that signatures name."""

    url: str
    region: str
    is_amazon: bool


def parse_address(address: str) -> tuple[str, str]:
    """Return bucket and key of an s3:// address; the key stands in it as it is, without percent signs for others."""
    scheme, _, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme.lower() != "s3" or not _BUCKET.fullmatch(bucket):
        raise UsageError(f"{shown_address(address)!r} does not name an S3 object", hint="expected s3://BUCKET/KEY")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{address!r} has an unpaired surrogate, which is not a character") from error
    if size > 1024:
        raise UsageError(f"the key in {address[:80]}… has {size} bytes and S3 allows 1024")
    return bucket, key


def amazon_place(bucket: str, region: str, *, by_path: bool = False) -> BucketLocation:
    """Return where a bucket of Amazon's is reached in a region."""
    host = f"s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
    if by_path or not _HOST_NAME.fullmatch(bucket):
        return BucketLocation(f"https://{host}/{bucket}", region, True)
    return BucketLocation(f"https://{bucket}.{host}", region, True)


def other_place(endpoint: str, bucket: str, region: str) -> BucketLocation:
    """Return where a bucket of another service is reached: below the endpoint, by path."""
    parts = urlsplit(endpoint)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise UsageError(
            f"{shown_address(endpoint)!r} is not an S3 endpoint",
            hint="set transfer.s3_endpoint or AWS_ENDPOINT_URL_S3 to https://HOST[:PORT]",
        )
    name = f"[{host}]" if ":" in host else host
    # A signature covers the host without the usual port; the request must then name it in the same way.
    if port is not None and port != {"http": 80, "https": 443}[parts.scheme]:
        name += f":{port}"
    return BucketLocation(f"{parts.scheme}://{name}{parts.path.rstrip('/')}/{bucket}", region or _FIRST_REGION, False)


# What the service answers


class Page(NamedTuple):
    """One page of a listing; `next` continues it and is empty on the last one."""

    remotes: list[Remote]
    next: str


def read_listing(body: bytes, bucket: str, folder: str) -> Page:
    """Return the files of one ListObjectsV2 answer, named relative to the folder."""
    document = _read_xml(body)
    if document.root != "ListBucketResult":
        raise Integrity(f"s3://{bucket}/{folder} does not answer with a listing but with {document.root!r}")
    is_quoted = document.fields.get("EncodingType") == "url"
    remotes: list[Remote] = []
    for entry in document.entries:
        key = unquote_plus(entry.get("Key", "")) if is_quoted else entry.get("Key", "")
        size = entry.get("Size", "")
        if not key.startswith(folder):
            raise Integrity(f"the listing of s3://{bucket}/{folder} names the foreign key {key!r}")
        if key.endswith("/") or key == folder:  # consoles mark a folder with an empty object
            continue
        known = int(size) if size.isascii() and size.isdigit() else None
        tag = entry.get("ETag", "")
        remotes.append(Remote(f"s3://{bucket}/{key}", key[len(folder) :], known, validator=_strong(tag)))
    if document.fields.get("IsTruncated") != "true":
        return Page(remotes, "")
    token = document.fields.get("NextContinuationToken", "")
    if not token:
        raise Integrity(f"the listing of s3://{bucket}/{folder} is cut off and does not say how to continue")
    return Page(remotes, token)


def _remote_of_head(address: str, key: str, headers: Mapping[str, str], *, is_amazon: bool) -> Remote:
    size = headers.get("content-length", "")
    return Remote(
        address,
        PurePosixPath(key).name,
        int(size) if size.isascii() and size.isdigit() else None,
        checksums_of(headers, is_amazon=is_amazon),
        _strong(headers.get("etag", "")),
    )


def _strong(tag: str) -> str:
    return tag if tag.startswith('"') else f'"{tag}"' if tag and not tag.startswith("W/") else ""


def checksums_of(headers: Mapping[str, str], *, is_amazon: bool) -> tuple[Checksum, ...]:
    """Return the checksums of the whole object that the headers of an answer state.

    A checksum of the checksums of parts says nothing that could be compared; not every store marks it with `-N`, so
    of an object in parts only a checksum counts that is called one of the whole. An ETag is the MD5 of the bytes
    only at Amazon, for an object written in one part, and not with a key of the customer or of the key service;
    elsewhere it may look the same and be something else.
    """
    checksums: list[Checksum] = []
    in_parts = _IN_PARTS.search(headers.get("etag", "")) is not None
    if headers.get("x-amz-checksum-type", "" if in_parts else "FULL_OBJECT").upper() == "FULL_OBJECT":
        for algorithm, length in _CHECKSUM_BYTES.items():
            try:
                raw = base64.b64decode(headers.get(f"x-amz-checksum-{algorithm}", ""), validate=True)
            except binascii.Error:
                continue
            if len(raw) == length:
                checksums.append(Checksum(algorithm, raw.hex()))
    tag = _MD5.fullmatch(headers.get("etag", ""))
    encryption = headers.get("x-amz-server-side-encryption", "")
    is_express = headers.get("x-amz-storage-class", "") == "EXPRESS_ONEZONE"
    own_key = "x-amz-server-side-encryption-customer-algorithm" in headers
    if tag and is_amazon and encryption in ("", "AES256") and not own_key and not is_express:
        checksums.append(Checksum("md5", tag[1]))
    return tuple(checksums)


def failure_of(address: str, status: int, fields: Mapping[str, str], *, is_signed: bool) -> FairmileError:
    """Return the error that a refusal means, with what to do about it."""
    code, message = fields.get("Code", ""), fields.get("Message", "")
    why = f"{status} {code}".strip()
    if code == "NoSuchBucket" or (status == 404 and not code):
        return NotFound(f"no bucket for {address}" if code else f"{address} does not exist")
    if status == 404:
        return NotFound(f"{address} does not exist: the store answers {why}")
    if code == "RequestTimeTooSkewed":
        return SystemFailure(
            f"the clock of this machine differs too much from the store's for {address}", hint="set the clock (NTP)"
        )
    if code == "InvalidObjectState":
        return SystemFailure(
            f"{address} is in cold storage and must be restored first",
            hint="restore it with `aws s3api restore-object`",
        )
    if code in _REFUSED:
        return SystemFailure(
            f"the store refuses the credentials for {address}: {why}",
            hint="check them with `aws sts get-caller-identity`; log in again if they have expired",
        )
    if status in (401, 403) and not is_signed:
        private = f"{address} is not open to everyone: the store answers {why}"
        if find_spec("botocore") is None:
            return MissingExtra(f"{private}, and signing requests needs botocore", "s3")
        return SystemFailure(private, hint="set up credentials with `aws configure` or AWS_PROFILE")
    if status in (401, 403):
        return SystemFailure(
            f"the credentials in use do not open {address}: the store answers {why}",
            hint="ask its owner for s3:GetObject and s3:ListBucket, or choose another AWS_PROFILE",
        )
    return SystemFailure(f"{address}: the store answers {why}" + (f": {message[:200]}" if message else ""))


@dataclass
class _Xml:
    """An S3 document: the name of its root, the texts below it, and its <Contents>."""

    root: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    entries: list[dict[str, str]] = field(default_factory=list)


def _read_xml(body: bytes) -> _Xml:
    """Read one of S3's flat documents; whatever could expand or point elsewhere is refused."""
    from xml.parsers import expat

    document, names, texts = _Xml(), list[str](), list[str]()

    def refuse(*_: Any) -> NoReturn:
        raise Integrity("the S3 service answers with a document type, which S3 never sends")

    def start(name: str, _: Any) -> None:
        names.append(name.rpartition(" ")[2])
        texts.clear()
        if len(names) == 1:
            document.root = names[0]
        elif names[1:] == ["Contents"]:
            document.entries.append({})

    def end(_: str) -> None:
        if len(names) == 2 and names[1] != "Contents":
            document.fields[names[1]] = "".join(texts)
        elif len(names) == 3 and names[1] == "Contents":
            document.entries[-1][names[2]] = "".join(texts)
        names.pop()
        texts.clear()

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise Integrity(f"the S3 service does not answer in XML: {error}") from error
    return document


# Who asks


class _Account:
    """What the AWS tools know of the user: region, endpoint and, where there are any, credentials."""

    def __init__(self, region: str = "", endpoint: str = "", credentials: Any = None) -> None:
        self.region = region
        self.endpoint = endpoint
        self._credentials = credentials

    @property
    def has_credentials(self) -> bool:
        return self._credentials is not None

    def signed(self, method: str, url: str, headers: Mapping[str, str], region: str) -> Mapping[str, str]:
        """Return the headers with a signature over them; as they are without credentials."""
        if self._credentials is None:
            return headers
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        # Amazon refuses a header of its own (x-amz-…) that the signature does not cover.
        request = AWSRequest(method, url, dict(headers))
        try:
            # Credentials with an end are renewed by the session when they are asked for.
            S3SigV4Auth(self._credentials.get_frozen_credentials(), "s3", region).add_auth(request)
        except BotoCoreError as error:
            raise SystemFailure(f"the AWS credentials cannot be renewed: {error}", hint="log in again") from error
        return dict(request.headers.items())


def _account(environ: Mapping[str, str], credentials: Credentials) -> _Account:
    """Return the account that the AWS tools would use; without botocore nobody's."""
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    try:
        from botocore.configprovider import ConfigChainFactory
        from botocore.credentials import ContainerProvider, EnvProvider
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError:
        return _Account(region, endpoint)
    # The session would look into this process's environment; it is given ours.
    known = {
        "AWS_CONFIG_FILE": str(credentials.home_file(".aws/config")),
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials.home_file(".aws/credentials")),
        **environ,
    }
    try:
        session = Session()
        chain = ConfigChainFactory(session, known)
        store = session.get_component("config_store")
        for name, (key, variable, default, convert) in session.SESSION_VARIABLES.items():
            provider = chain.create_config_chain(name, variable, key, default, convert)
            store.set_config_provider(name, provider)
        resolver = session.get_component("credential_provider")
        for provider in (EnvProvider(known), ContainerProvider(known)):
            resolver.insert_after(provider.METHOD, provider)
            resolver.remove(provider.METHOD)
        if known.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            resolver.remove("iam-role")
        profile = session.get_scoped_config()
        return _Account(
            region or session.get_config_variable("region") or "",
            endpoint or profile.get("endpoint_url", ""),
            session.get_credentials(),
        )
    except BotoCoreError as error:
        raise UsageError(f"the AWS settings cannot be used: {error}", hint="check AWS_PROFILE and ~/.aws") from error
