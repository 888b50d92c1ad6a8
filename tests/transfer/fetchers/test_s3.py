"""s3:// against real S3 servers (moto): one checks every signature, the other takes anonymous requests too.

Amazon itself is out of reach of a test: its region answers are played by a local server.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.commands import Here
from fairmile.base.digest import Checksum
from fairmile.base.errors import Integrity, NotFound, SystemFailure, UsageError
from fairmile.testing.fetchers import RangeFetcherTests, Served
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers import s3
from fairmile.transfer.fetchers.open_s3 import OpenS3
from fairmile.transfer.fetchers.s3 import S3
from fairmile.transfer.remote import Context, RangeFetcher, Remote
from fairmile.transfer.settings import Settings

KEYS = ["gauges/2026/a b.csv", "gauges/2026/plus+minus.csv", "gauges/2026/100%.csv", "gauges/2026/%20.csv",
        "gauges/2026/größe/潮.csv", "gauges/2026/quote'\"&<>.csv", "gauges/2026/q?x=1#y.csv"]  # fmt: skip


@dataclass(frozen=True)
class Account:
    """A server and what signs requests to it."""

    endpoint: str
    key: str
    secret: str
    writer: tuple[str, str] = ("", "")

    def client(self, service: str) -> Any:
        return _client(self, service)


@cache  # one takes a second to make
def _client(account: Account, service: str) -> Any:
    from botocore.session import Session

    return Session().create_client(
        service,
        region_name="us-east-1",
        endpoint_url=account.endpoint,
        aws_access_key_id=account.key,
        aws_secret_access_key=account.secret,
    )


def _serve(folder: Path) -> Iterator[str]:
    pytest.importorskip("moto.server", reason="needs the package moto[server]")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MOTO_"))}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "log").open("wb") as log:
        # Pages of three objects, so that every listing of more has to go on.
        process = subprocess.Popen(command, env=environ | {"MOTO_S3_DEFAULT_MAX_KEYS": "3"}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            pytest.fail(f"the S3 server does not answer: {(folder / 'log').read_text(errors='replace')[-2000:]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """A server that refuses every request without a valid signature of a user who may read it."""
    for endpoint in _serve(tmp_path_factory.mktemp("locked")):
        root = Account(endpoint, "root", "root")
        store, people = root.client("s3"), root.client("iam")
        store.create_bucket(Bucket="tides")
        for key in KEYS:
            store.put_object(Bucket="tides", Key=key, Body=key.encode())
        store.put_object(Bucket="tides", Key="gauges/", Body=b"")
        store.put_object(Bucket="tides", Key="summed.bin", Body=b"summed", ChecksumAlgorithm="SHA256")
        store.put_object(
            Bucket="tides", Key="crc.bin", Body=b"123456789", ChecksumAlgorithm="CRC32C", ChecksumCRC32C="4waSgw=="
        )
        store.put_object(Bucket="tides", Key="both", Body=b"object")
        store.put_object(Bucket="tides", Key="both/inner", Body=b"inner")
        upload = store.create_multipart_upload(Bucket="tides", Key="parts.bin", ChecksumAlgorithm="SHA256")["UploadId"]
        parts = []
        for number, data in enumerate([b"x" * (5 << 20), b"y"], 1):
            sent = store.upload_part(
                Bucket="tides",
                Key="parts.bin",
                UploadId=upload,
                PartNumber=number,
                Body=data,
                ChecksumAlgorithm="SHA256",
            )
            parts.append({"ETag": sent["ETag"], "PartNumber": number})
        store.complete_multipart_upload(
            Bucket="tides", Key="parts.bin", UploadId=upload, MultipartUpload={"Parts": parts}
        )
        allowed = {"Effect": "Allow", "Action": ["s3:GetObject", "s3:HeadObject", "s3:ListBucket"], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        people.create_user(UserName="reader")
        people.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
        made = people.create_access_key(UserName="reader")["AccessKey"]
        people.create_user(UserName="writer")
        everything = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy_of_all = json.dumps({"Version": "2012-10-17", "Statement": [everything]})
        people.put_user_policy(UserName="writer", PolicyName="all", PolicyDocument=policy_of_all)
        owner = people.create_access_key(UserName="writer")["AccessKey"]
        people.create_user(UserName="stranger")
        people.create_role(RoleName="visitor", AssumeRolePolicyDocument="{}")
        people.put_role_policy(RoleName="visitor", PolicyName="read", PolicyDocument=policy)
        _count_from_now(endpoint)
        yield Account(
            endpoint, made["AccessKeyId"], made["SecretAccessKey"], (owner["AccessKeyId"], owner["SecretAccessKey"])
        )


def _count_from_now(endpoint: str, free: int = 0) -> None:
    """Make the server check signatures after so many more requests."""
    request = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth", str(free).encode(), {"Content-Type": "text/plain"}, method="POST"
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """A server with objects that are open to everyone, and others that are not."""
    for endpoint in _serve(tmp_path_factory.mktemp("public")):
        root = Account(endpoint, "root", "root")
        store = root.client("s3")
        store.create_bucket(Bucket="open", ACL="public-read")
        for name in ("a", "b", "c", "d"):
            store.put_object(Bucket="open", Key=f"all/{name}", Body=name.encode(), ACL="public-read")
        store.put_object(Bucket="open", Key="secret", Body=b"secret", ACL="private")
        store.put_object(Bucket="open", Key="frozen", Body=b"ice", ACL="public-read", StorageClass="GLACIER")
        yield root


Build = Any


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Build]:
    """Build a fetcher with an environment of its own."""
    built: list[S3] = []

    def build(endpoint: str = "", **environ: str) -> S3:
        known = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", **environ}
        settings = Settings(s3_endpoint=endpoint, retries=2)
        built.append(S3(Context(known, Here(), Credentials(known), settings)))
        return built[-1]

    yield build
    for one in built:
        one.client.close()


@pytest.fixture
def reader(fetcher: Build, locked: Account) -> S3:
    built: S3 = fetcher(locked.endpoint, AWS_ACCESS_KEY_ID=locked.key, AWS_SECRET_ACCESS_KEY=locked.secret)
    return built


def read(fetcher: S3 | OpenS3, remote: Remote, start: int = 0, stop: int | None = None) -> bytes:
    body = fetcher.open(remote, start, stop)
    data, buffer = b"", memoryview(bytearray(1 << 20))
    try:
        while count := body.readinto(buffer):
            data += buffer[:count]
    finally:
        body.close()
    return data


# The conformance suite, every request with a signature that the server checks


class TestConformance(RangeFetcherTests):
    @pytest.fixture
    def served(self, locked: Account, fetcher: Build) -> Iterator[Served[RangeFetcher]]:
        writer = Account(locked.endpoint, *locked.writer)
        store = writer.client("s3")
        bucket = f"b{os.urandom(8).hex()}"
        store.create_bucket(Bucket=bucket)

        def publish(files: Mapping[str, bytes]) -> str:
            folder = hashlib.sha256(repr(sorted(files)).encode()).hexdigest()
            for path, data in files.items():
                store.put_object(Bucket=bucket, Key=f"{folder}/{path}", Body=data)
            return f"s3://{bucket}/{folder}/" + (next(iter(files)) if len(files) == 1 else "")

        built = fetcher(locked.endpoint, AWS_ACCESS_KEY_ID=writer.key, AWS_SECRET_ACCESS_KEY=writer.secret)
        yield Served(built, publish, f"s3://{bucket}/nowhere", secret=writer.secret)
        store.close()


# Objects and folders, signed


@pytest.mark.parametrize("key", KEYS)
def test_an_object_is_found_and_read_under_any_key(reader: S3, key: str) -> None:
    (found,) = reader.find(f"s3://tides/{key}")
    assert (found.address, found.path, found.size_bytes) == (
        f"s3://tides/{key}", key.rpartition("/")[2], len(key.encode())
    )  # fmt: skip
    assert read(reader, found) == key.encode()
    assert read(reader, found, 2, 5) == key.encode()[2:5]


@pytest.mark.parametrize("address", ["s3://tides/gauges/2026/", "s3://tides/gauges/2026"])
def test_a_folder_is_listed_over_several_pages_with_or_without_its_slash(reader: S3, address: str) -> None:
    found = reader.find(address)
    assert sorted(remote.path for remote in found) == sorted(key.removeprefix("gauges/2026/") for key in KEYS)
    assert all(read(reader, remote) == remote.address.removeprefix("s3://tides/").encode() for remote in found)


def test_a_listed_file_has_the_size_and_the_validator_that_the_server_answers_with(reader: S3) -> None:
    for remote in reader.find("s3://tides/gauges/"):
        body = reader.open(remote, 0, None)
        assert (body.total_bytes, body.validator) == (remote.size_bytes, remote.validator)
        assert remote.checksums == ()
        body.close()


def test_the_empty_object_that_marks_a_folder_is_left_out(reader: S3) -> None:
    assert "s3://tides/gauges/" not in {remote.address for remote in reader.find("s3://tides")}


def test_an_object_wins_over_a_folder_of_the_same_name(reader: S3) -> None:
    assert [remote.address for remote in reader.find("s3://tides/both")] == ["s3://tides/both"]
    assert [remote.address for remote in reader.find("s3://tides/both/")] == ["s3://tides/both/inner"]


def test_a_checksum_of_the_whole_object_is_taken(reader: S3) -> None:
    (found,) = reader.find("s3://tides/summed.bin")
    assert found.checksums == (Checksum("sha256", hashlib.sha256(b"summed").hexdigest()),)
    (found,) = reader.find("s3://tides/crc.bin")
    assert found.checksums == (Checksum("crc32c", "e3069283"),)


def test_a_checksum_of_parts_is_not_taken(reader: S3) -> None:
    (found,) = reader.find("s3://tides/parts.bin")
    assert found.checksums == ()
    assert found.validator.endswith('-2"')
    assert read(reader, found, (5 << 20) - 1, (5 << 20) + 1) == b"xy"


def test_nothing_there_is_said_with_the_address(reader: S3) -> None:
    with pytest.raises(NotFound, match="no object and no folder s3://tides/absent"):
        reader.find("s3://tides/absent")
    with pytest.raises(NotFound, match="no bucket for s3://absent/x"):
        reader.find("s3://absent/x")


def test_many_threads_share_one_fetcher(reader: S3) -> None:
    remotes = reader.find("s3://tides/gauges/2026/")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda remote: read(reader, remote), remotes * 4)) == [
            remote.address.removeprefix("s3://tides/").encode() for remote in remotes * 4
        ]


def test_an_object_that_vanished_is_said_on_opening(reader: S3) -> None:
    with pytest.raises(NotFound, match=r"s3://tides/gone\.csv"):
        reader.open(Remote("s3://tides/gone.csv", "gone.csv"), 0, None)


# Credentials


def test_a_wrong_secret_is_refused_and_never_shown(fetcher: Build, locked: Account) -> None:
    wrong = fetcher(locked.endpoint, AWS_ACCESS_KEY_ID=locked.key, AWS_SECRET_ACCESS_KEY="wrong/secret")
    with pytest.raises(SystemFailure, match="refuses the credentials") as caught:
        wrong.find("s3://tides/both")
    assert "SignatureDoesNotMatch" in str(caught.value)
    assert "wrong/secret" not in f"{caught.value} {caught.value.hint} {wrong!r}"


def test_a_user_without_the_right_is_told_whom_to_ask(fetcher: Build, locked: Account) -> None:
    _count_from_now(locked.endpoint, 1)
    made = Account(locked.endpoint, "root", "root").client("iam").create_access_key(UserName="stranger")["AccessKey"]
    _count_from_now(locked.endpoint)
    stranger = fetcher(
        locked.endpoint, AWS_ACCESS_KEY_ID=made["AccessKeyId"], AWS_SECRET_ACCESS_KEY=made["SecretAccessKey"]
    )
    with pytest.raises(SystemFailure, match="do not open s3://tides/both: the store answers 403") as caught:
        stranger.find("s3://tides/both")
    assert "s3:GetObject" in str(caught.value.hint)


def test_credentials_with_a_session_token_are_used(fetcher: Build, locked: Account) -> None:
    _count_from_now(locked.endpoint, 1)
    role = "arn:aws:iam::123456789012:role/visitor"
    given = Account(locked.endpoint, "root", "root").client("sts").assume_role(RoleArn=role, RoleSessionName="test")
    _count_from_now(locked.endpoint)
    guest = fetcher(
        locked.endpoint,
        AWS_ACCESS_KEY_ID=given["Credentials"]["AccessKeyId"],
        AWS_SECRET_ACCESS_KEY=given["Credentials"]["SecretAccessKey"],
        AWS_SESSION_TOKEN=given["Credentials"]["SessionToken"],
    )
    (found,) = guest.find("s3://tides/both")
    assert read(guest, found) == b"object"


def test_credentials_and_endpoint_come_from_a_profile_of_the_aws_tools(
    fetcher: Build, locked: Account, tmp_path: Path
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        f"[lab]\naws_access_key_id = {locked.key}\naws_secret_access_key = {locked.secret}\n"
    )
    (tmp_path / ".aws/config").write_text(f"[profile lab]\nregion = eu-north-1\nendpoint_url = {locked.endpoint}\n")
    lab = fetcher(AWS_PROFILE="lab")
    (found,) = lab.find("s3://tides/both")
    assert read(lab, found) == b"object"
    assert "eu-north-1" in lab._signed("GET", "tides", "both")[1]["Authorization"]


def test_credentials_that_run_out_are_renewed_for_the_next_request(
    fetcher: Build, locked: Account, tmp_path: Path
) -> None:
    program = tmp_path / "give.py"
    program.write_text(
        "import datetime, json, sys\n"
        f"open({str(tmp_path / 'asked')!r}, 'a').write('x')\n"
        "soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=2)\n"
        f"print(json.dumps({{'Version': 1, 'AccessKeyId': {locked.key!r}, 'SecretAccessKey': {locked.secret!r}, "
        "'Expiration': soon.isoformat()}))\n"
    )
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    renewing = fetcher(locked.endpoint)
    (found,) = renewing.find("s3://tides/both")
    before = len((tmp_path / "asked").read_text())
    assert read(renewing, found) == b"object"
    assert len((tmp_path / "asked").read_text()) > before


def test_a_profile_that_does_not_exist_is_said(fetcher: Build) -> None:
    with pytest.raises(UsageError, match="nobody") as caught:
        fetcher(AWS_PROFILE="nobody").find("s3://tides/both")
    assert "AWS_PROFILE" in str(caught.value.hint)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_the_endpoint_comes_from_the_variables_of_the_aws_tools(fetcher: Build, public: Account, variable: str) -> None:
    assert len(fetcher(**{variable: public.endpoint}).find("s3://open/all/")) == 4


# Without credentials


def test_open_data_are_found_and_read_without_credentials(fetcher: Build, public: Account) -> None:
    nobody = fetcher(public.endpoint)
    found = nobody.find("s3://open/all")
    assert [(remote.path, read(nobody, remote)) for remote in found] == [
        ("a", b"a"), ("b", b"b"), ("c", b"c"), ("d", b"d")
    ]  # fmt: skip
    assert nobody._signed("GET", "open", "all/a")[1] == {}


def test_open_data_of_any_service_are_named_by_its_host_and_never_shown_keys(tmp_path: Path, public: Account) -> None:
    known = {"HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "mine"}
    elsewhere = Settings(s3_endpoint="http://127.0.0.1:1", retries=1)
    anyone = OpenS3(Context(known, Here(), Credentials(known), elsewhere))
    found = anyone.find(f"s3+{public.endpoint}/open/all")
    assert [(remote.path, read(anyone, remote)) for remote in found[:2]] == [("a", b"a"), ("b", b"b")]
    assert anyone._store(public.endpoint)._signed("GET", "open", "all/a")[1] == {}
    anyone.close()
    with pytest.raises(UsageError, match="does not name an S3 object"):
        anyone.find("s3+https://host-alone")


def test_open_data_need_no_further_package(fetcher: Build, public: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("botocore", "botocore.configprovider", "botocore.session"):
        monkeypatch.setitem(sys.modules, name, None)
    nobody = fetcher(public.endpoint, AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y")
    (found,) = nobody.find("s3://open/all/a")
    assert read(nobody, found) == b"a"


def test_data_that_need_a_login_say_how_to_give_it(fetcher: Build, public: Account) -> None:
    with pytest.raises(SystemFailure, match="s3://open/secret is not open to everyone") as caught:
        fetcher(public.endpoint).find("s3://open/secret")
    assert "aws configure" in str(caught.value.hint)


def test_cold_storage_is_named_on_opening(fetcher: Build, public: Account) -> None:
    nobody = fetcher(public.endpoint)
    (found,) = nobody.find("s3://open/frozen")
    with pytest.raises(SystemFailure, match="s3://open/frozen is in cold storage") as caught:
        nobody.open(found, 0, None)
    assert "restore-object" in str(caught.value.hint)


# Regions of Amazon, played by a local server


class _Amazon(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        bucket = self.path.strip("/")
        status = {"/far": 301, "/private": 403, "/none": 404}.get(f"/{bucket}", 200)
        self.send_response(status)
        if status != 404:
            self.send_header("x-amz-bucket-region", "ap-south-2" if bucket == "far" else "us-east-1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Amazon)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    real = s3.amazon_place

    def place(bucket: str, region: str, *, by_path: bool = False) -> s3.BucketLocation:
        return (
            real(bucket, region)._replace(url=f"http://127.0.0.1:{server.server_port}/{bucket}")
            if by_path
            else real(bucket, region)
        )

    monkeypatch.setattr(s3, "amazon_place", place)
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_region_of_a_bucket_is_asked_for_whoever_may_read_it(fetcher: Build, amazon: None) -> None:
    someone = fetcher(AWS_ACCESS_KEY_ID="AKIDEXAMPLE", AWS_SECRET_ACCESS_KEY="s")
    url, headers = someone._signed("GET", "far", "a b")
    assert url == "https://far.s3.ap-south-2.amazonaws.com/a%20b"
    assert "/ap-south-2/s3/aws4_request" in headers["Authorization"]
    assert someone._signed("GET", "private", "x")[0] == "https://private.s3.us-east-1.amazonaws.com/x"


def test_a_bucket_that_amazon_does_not_know_is_said(fetcher: Build, amazon: None) -> None:
    with pytest.raises(NotFound, match="s3://none"):
        fetcher().find("s3://none/x")


def test_a_signature_is_made_anew_for_each_request(fetcher: Build, amazon: None) -> None:
    someone = fetcher(AWS_ACCESS_KEY_ID="AKIDEXAMPLE", AWS_SECRET_ACCESS_KEY="s")
    one, other = (someone._signed("GET", "far", key)[1]["Authorization"] for key in ("a", "b"))
    assert one != other


def test_a_signature_covers_every_header_of_amazons_own(fetcher: Build, amazon: None) -> None:
    someone = fetcher(AWS_ACCESS_KEY_ID="AKIDEXAMPLE", AWS_SECRET_ACCESS_KEY="s", AWS_SESSION_TOKEN="t")
    _, headers = someone._signed("HEAD", "far", "a", headers={"x-amz-checksum-mode": "ENABLED"})
    covered = headers["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    own = {name.lower() for name in headers if name.lower().startswith("x-amz-")}
    assert own == {"x-amz-checksum-mode", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"}
    assert own | {"host"} <= set(covered)


@pytest.mark.parametrize(
    ("bucket", "region", "url"),
    [
        ("tides", "eu-north-1", "https://tides.s3.eu-north-1.amazonaws.com"),
        ("dotted.name", "us-east-1", "https://s3.us-east-1.amazonaws.com/dotted.name"),
        ("Old_Name", "us-east-1", "https://s3.us-east-1.amazonaws.com/Old_Name"),
        ("tides", "cn-north-1", "https://tides.s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_a_bucket_of_amazon_has_its_own_host_where_its_name_allows(bucket: str, region: str, url: str) -> None:
    assert s3.amazon_place(bucket, region).url == url


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("https://Store.example:9000/", "https://store.example:9000/b"),
        ("http://store.example:80/s3/", "http://store.example/s3/b"),
        ("https://[::1]:8443", "https://[::1]:8443/b"),
    ],
)
def test_another_service_is_asked_by_path(endpoint: str, url: str) -> None:
    assert s3.other_place(endpoint, "b", "") == (url, "us-east-1", False)


@pytest.mark.parametrize(
    "endpoint", ["store.example", "ftp://store.example", "https://u:p@store.example", "http://h:x"]
)
def test_an_endpoint_that_is_none_is_refused_without_its_password(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is not an S3 endpoint") as caught:
        s3.other_place(endpoint, "b", "")
    assert ":p@" not in str(caught.value)


# Addresses and answers


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("s3://tides", ("tides", "")),
        ("s3://tides/", ("tides", "")),
        ("S3://tides/a%20b?c#d", ("tides", "a%20b?c#d")),
        ("s3://tides//double", ("tides", "/double")),
    ],
)
def test_the_key_stands_in_the_address_as_it_is(address: str, parts: tuple[str, str]) -> None:
    assert s3.parse_address(address) == parts


@pytest.mark.parametrize(
    "address", ["s3://", "s3:///key", "s3:tides/key", "https://tides/key", "s3://ti des/k", "s3://a.b@c/k", "s3://b/\ud800",
                "s3://tides/" + "x" * 1025]
)  # fmt: skip
def test_an_address_that_names_no_object_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        s3.parse_address(address)


def listing(*contents: str, **fields: str) -> bytes:
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items()) + "".join(contents)
    return (
        f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}'
        "</ListBucketResult>"
    ).encode()


@given(st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=30))
def test_any_key_survives_the_listing(name: str) -> None:
    from urllib.parse import quote_plus

    body = listing(f"<Contents><Key>{quote_plus('f/' + name)}</Key><Size>3</Size></Contents>", EncodingType="url")
    page = s3.read_listing(body, "b", "f/")
    expected = [] if name.endswith("/") else [Remote(f"s3://b/f/{name}", name, 3)]
    assert page == (expected, "")


def test_a_key_outside_the_folder_asked_for_is_not_believed() -> None:
    with pytest.raises(Integrity, match="foreign key 'g/x'"):
        s3.read_listing(listing("<Contents><Key>g/x</Key></Contents>"), "b", "f/")


def test_a_listing_that_is_cut_off_without_a_continuation_is_an_error() -> None:
    with pytest.raises(Integrity, match="cut off"):
        s3.read_listing(listing(IsTruncated="true"), "b", "")


def test_the_token_of_the_next_page_is_found() -> None:
    assert s3.read_listing(listing(IsTruncated="true", NextContinuationToken="t/+="), "b", "").next == "t/+="


@pytest.mark.parametrize(
    "body",
    [
        b'<!DOCTYPE a [<!ENTITY b "bb">]><ListBucketResult><Contents><Key>&b;</Key></Contents></ListBucketResult>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><ListBucketResult/>',
    ],
)
def test_a_document_that_could_expand_or_point_elsewhere_is_refused(body: bytes) -> None:
    with pytest.raises(Integrity, match="document type"):
        s3.read_listing(body, "b", "")


@pytest.mark.parametrize("body", [b"", b"<html><body>Log in</body></html>", b"{}", b"<ListBucketResult>"])
def test_what_is_no_listing_is_not_taken_for_an_empty_one(body: bytes) -> None:
    with pytest.raises(Integrity):
        s3.read_listing(body, "b", "")


MD5 = '"5d41402abc4b2a76b9719d911017c592"'
SHA256 = "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="


@for_each(
    "headers, is_amazon, algorithms",
    [
        ({"etag": MD5}, True, ["md5"]),
        ({"etag": MD5, "x-amz-server-side-encryption": "AES256"}, True, ["md5"]),
        ({"etag": MD5, "x-amz-server-side-encryption": "aws:kms"}, True, []),
        ({"etag": MD5, "x-amz-server-side-encryption": "aws:kms:dsse"}, True, []),
        ({"etag": MD5, "x-amz-server-side-encryption-customer-algorithm": "AES256"}, True, []),
        ({"etag": MD5, "x-amz-storage-class": "EXPRESS_ONEZONE"}, True, []),
        ({"etag": MD5}, False, []),
        ({"etag": MD5[:-1] + '-3"'}, True, []),
        ({"x-amz-checksum-sha256": SHA256}, False, ["sha256"]),
        ({"x-amz-checksum-sha256": SHA256, "x-amz-checksum-type": "FULL_OBJECT"}, False, ["sha256"]),
        ({"x-amz-checksum-sha256": SHA256, "x-amz-checksum-type": "COMPOSITE"}, False, []),
        ({"x-amz-checksum-sha256": SHA256 + "-2"}, False, []),
        ({"x-amz-checksum-sha256": SHA256, "etag": MD5[:-1] + '-2"'}, False, []),
        ({"x-amz-checksum-crc32c": "4waSgw==", "etag": MD5[:-1] + '-2"'}, False, []),
        (
            {"x-amz-checksum-crc32c": "4waSgw==", "x-amz-checksum-type": "FULL_OBJECT", "etag": MD5[:-1] + '-2"'},
            False,
            ["crc32c"],
        ),
        ({"x-amz-checksum-crc32c": "4waSgw==", "x-amz-checksum-crc64nvme": "rosUhgp5mIg="}, False, ["crc32c"]),
        ({"x-amz-checksum-sha256": "4waSgw=="}, False, []),
    ],
)
def test_only_a_checksum_of_all_bytes_counts(
    headers: Mapping[str, str], is_amazon: bool, algorithms: list[str]
) -> None:
    assert [checksum.algorithm for checksum in s3.checksums_of(headers, is_amazon=is_amazon)] == algorithms


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (403, "RequestTimeTooSkewed", SystemFailure, "clock"),
        (400, "ExpiredToken", SystemFailure, "refuses the credentials"),
        (404, "NoSuchKey", NotFound, "s3://b/k does not exist"),
        (405, "MethodNotAllowed", SystemFailure, "405 MethodNotAllowed"),
    ],
)
def test_a_refusal_is_explained(status: int, code: str, kind: type[Exception], words: str) -> None:
    error = s3.failure_of("s3://b/k", status, {"Code": code}, is_signed=True)
    assert type(error) is kind and words in str(error)
