"""Files at addresses: referees are boto3, fsspec and the files themselves."""

from __future__ import annotations

import contextlib
import http.server
import importlib
import pickle
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data import cache
from dtrain.data.files import files
from dtrain.errors import DataError, UsageError

DATA = np.random.default_rng(0).integers(0, 255, 300_000, np.uint8).tobytes()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves files of a dict, and some of them not to their end."""

    server: Server

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, body: bool) -> None:
        self.server.asked.append((self.command, self.path))
        path = self.path.partition("?")[0]
        if path == "/":
            text = "".join(f'<a href="{name}">{name}</a>' for name in self.server.files).encode()
            self._send(200, text, body, {})
            return
        if self.headers.get("Authorization") or path not in self.server.files:
            self._send(404, b"no", body, {})
            return
        data, head = self.server.files[path], dict(self.server.head)
        self._send(200, data, body, head)

    def _send(self, code: int, data: bytes, body: bool, head: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **head}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            if self.server.dies and len(data) > self.server.dies:
                self.wfile.write(data[: self.server.dies])
                self.close_connection = True
            else:
                with contextlib.suppress(OSError):  # who wants no more
                    self.wfile.write(data)


class Server(http.server.ThreadingHTTPServer):
    """Serves on loopback."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.head = {"ETag": '"one"'}
        self.dies = 0
        self.asked: list[tuple[str, str]] = []

    def at(self, name: str) -> str:
        """Return an address."""
        return f"http://127.0.0.1:{self.server_port}/{name}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))


def copies() -> list[Path]:
    """Return what is in the cache, beside locks."""
    return [path for path in Path("cache").glob("*") if path.suffix != ".lock"]


def refusal(*paths: str) -> str:
    with pytest.raises(UsageError) as caught:
        files(paths[0] if len(paths) == 1 else list(paths))
    return str(caught.value)


def test_a_file_of_http(server: Server) -> None:
    server.files["/x.bin"] = DATA
    [file] = files(server.at("x.bin"))
    assert file.size() == len(DATA) and file.name == server.at("x.bin")
    assert file.stamp() == f'{len(DATA)}-"one"'
    assert file.local().read_bytes() == DATA and file.local().suffix == ".bin"
    asked = len(server.asked)
    for again in (file, *files(server.at("x.bin")), pickle.loads(pickle.dumps(file))):
        assert again.local() == file.local() and again.stamp() == file.stamp()
        with again.open() as opened:
            assert opened.read() == DATA
    assert not [one for one in server.asked[asked:] if one[0] == "GET"], "it was fetched again"
    server.files["/x.bin"], server.head = DATA[::-1], {"ETag": '"two"'}
    [other] = files(server.at("x.bin"))
    assert other.stamp() != file.stamp() and other.local().read_bytes() == DATA[::-1]
    assert file.local().read_bytes() == DATA


def test_patterns_and_lists_of_http(server: Server) -> None:
    server.files |= {f"/{name}.bin": name.encode() for name in "bca"} | {"/d.txt": b"d"}
    found = files([server.at("[ab].bin"), server.at("c.bin?v=*")])
    assert [file.name[-6:] for file in found] == ["/a.bin", "/b.bin", "in?v=*"]
    assert [file.local().read_bytes() for file in found] == [b"a", b"b", b"c"]
    Path("local.bin").write_bytes(b"l")
    mixed = files(["local.bin", server.at("*.txt")])
    assert [file.size() for file in mixed] == [1, 1] and mixed[1].name == "local.bin"
    assert "names" in refusal(server.at("a.bin"), server.at("*.bin"))
    assert refusal(server.at("*.csv")).startswith(f"dataset.path={server.at('*.csv')}: no file has")


def test_addresses_that_cannot_be_asked(server: Server) -> None:
    assert "cannot be found (404 Not Found)" in refusal(server.at("x"))
    at = server.at("x").replace(str(server.server_port), "1")
    assert "cannot be found (Cannot connect to host 127.0.0.1:1" in refusal(at)
    assert "dtrain reads no files of ftp://" in refusal("ftp://host/x")
    assert "dtrain reads no files of file://" in refusal("file:///etc/passwd")


def test_a_password_is_in_no_message(server: Server) -> None:
    found = refusal(server.at("x?token=canary-0451").replace("http://", "http://me:canary-0451@"))
    assert "404" in found and "canary" not in found, found
    server.files["/x"] = DATA
    [file] = files(server.at("x?X-Amz-Signature=canary-0451&sig=canary-0451"))
    assert "canary" not in file.name
    server.files.clear()
    with pytest.raises(DataError) as caught:
        file.local()
    assert "canary" not in str(caught.value) and file.name in str(caught.value)
    assert "canary" not in "".join(path.name for path in copies())


def test_a_server_that_dies_midway(server: Server) -> None:
    server.files["/x.bin"] = DATA
    [file] = files(server.at("x.bin"))
    server.dies = 100_000
    place = re.escape(f"{server.at('x.bin')}: cannot be fetched (")
    with pytest.raises(DataError, match=f"^{place}") as caught:
        file.local()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert copies() == []
    server.dies = 0
    assert file.local().read_bytes() == DATA


def test_a_file_that_changes_while_it_is_fetched(server: Server) -> None:
    server.files["/x.bin"] = DATA
    [file] = files(server.at("x.bin"))
    for head, data in (({"ETag": '"two"'}, DATA), ({"ETag": '"one"'}, DATA + b"x")):
        server.head, server.files["/x.bin"] = head, data
        with pytest.raises(DataError, match=r"has changed while it was fetched$"):
            file.local()
    assert copies() == []


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
def test_a_package_that_is_missing(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.import_module("fsspec.registry")  # fsspec has another thing of that name
    package = {"s3": "s3fs", "gs": "gcsfs", "http": "aiohttp"}[scheme]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(known._registry, scheme, raising=False)
    extra = {"gs": "gcs"}.get(scheme, scheme)
    found = refusal(f"{scheme}://bucket/x")
    assert f"{scheme}://bucket/x: {scheme}:// needs packages that are not installed" in found
    assert found.endswith(f'type: pip install "dtrain[{extra}]"'), found


# --- S3


def test_a_file_of_s3(bucket: Any) -> None:
    bucket.put_object(Key="x/a.bin", Body=DATA)
    [file] = files("s3://bucket/x/a.bin")
    assert file.name == "s3://bucket/x/a.bin" and file.size() == len(DATA)
    assert bucket.Object("x/a.bin").e_tag in file.stamp()
    with file.open() as opened:
        opened.seek(-9, 2)
        assert opened.read() == DATA[-9:]
    assert file.local().read_bytes() == DATA
    bucket.put_object(Key="x/a.bin", Body=DATA[::-1])
    [other] = files("s3://bucket/x/a.bin")
    assert other.stamp() != file.stamp() and other.local().read_bytes() == DATA[::-1]


def test_patterns_and_lists_of_s3(bucket: Any) -> None:
    for name in ("x/b.npy", "x/a.npy", "x/c.txt", "x/y/d.npy"):
        bucket.put_object(Key=name, Body=name.encode())
    found = files("s3://bucket/x/*.npy")
    assert [file.name for file in found] == ["s3://bucket/x/a.npy", "s3://bucket/x/b.npy"]
    assert [file.stamp() for file in found] == [files(file.name)[0].stamp() for file in found]
    assert [file.local().read_bytes() for file in found] == [b"x/a.npy", b"x/b.npy"]
    assert len(files("s3://bucket/**/*.npy")) == 3
    assert len(files(["s3://bucket/x/c.txt", "s3://bucket/x/?.npy"])) == 3
    folder = refusal("s3://bucket/x")
    assert (
        folder.startswith("dataset.path=s3://bucket/x: is a folder") and "s3://bucket/x/*" in folder
    )
    assert "s3://bucket/z: cannot be found (" in refusal("s3://bucket/z")
    assert "s3://bucket/*.csv: no file has such an address" in refusal("s3://bucket/*.csv")
    assert "s3://none/z: cannot be found (" in refusal("s3://none/z")


def test_credentials_of_s3(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    bucket.put_object(Key="a.bin", Body=DATA)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    fsspec.filesystem("s3").clear_instance_cache()
    assert "cannot be found (Unable to locate credentials)" in refusal("s3://bucket/a.bin")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-0451-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    fsspec.filesystem("s3").clear_instance_cache()
    found = refusal("s3://bucket/a.bin")
    assert "Could not connect to the endpoint URL" in found and "canary" not in found


def test_arrays_of_s3(bucket: Any) -> None:
    x, y = np.arange(4000.0).reshape(1000, 4), np.arange(1000) % 3
    for number, part in enumerate(np.split(np.arange(1000), 4)):
        for name, array in (("x", x[part]), ("y", y[part])):
            np.save(f"{name}{number}.npy", array)
            bucket.upload_file(f"{name}{number}.npy", f"{name}{number}.npy")
    splits = datasets.npy("s3://bucket/x?.npy", "s3://bucket/y*.npy", validation_split=0)
    taken = splits.train[np.arange(1000)[::-1]]
    assert np.array_equal(taken[0], x.astype(np.float32)[::-1]) and np.array_equal(
        taken[1], y[::-1]
    )
    assert splits.count_classes() == 3
    assert len(copies()) == 8
