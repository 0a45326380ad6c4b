"""Files at addresses: referees are boto3, fsspec and the files themselves."""

from __future__ import annotations

import contextlib
import http.server
import importlib
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data import cache, remote
from dtrain.data.files import files
from dtrain.errors import DataError, UsageError
from tests.test_cache import release

DATA = np.random.default_rng(0).integers(0, 255, 300_000, np.uint8).tobytes()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves files of a dict; with parts or without, and some of them not to their end."""

    server: Server

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, body: bool) -> None:
        self.server.asked.append((self.command, self.path, self.headers.get("Range")))
        path = self.path.partition("?")[0]
        if path == "/":
            text = "".join(f'<a href="{name}">{name}</a>' for name in self.server.files).encode()
            self._send(200, text, body, {})
            return
        if self.headers.get("Authorization") or path not in self.server.files:
            self._send(404, b"no", body, {})
            return
        data, head = self.server.files[path], dict(self.server.head)
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if found and self.server.parts:
            first, last = int(found[1]), min(int(found[2]), len(data) - 1)
            head["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self._send(206, data[first : last + 1], body, head)
        else:
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
        self.parts, self.dies = True, 0
        self.asked: list[tuple[str, str, str | None]] = []

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
    monkeypatch.delenv(cache.BYTES, raising=False)


def copies() -> list[Path]:
    """Return what is in the cache, beside what keeps its order."""
    found = Path("cache").glob("*")
    return [path for path in found if path.suffix not in (".lock", ".lease")]


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


def test_of_a_head_no_more_than_that_is_fetched(server: Server) -> None:
    np.savez("a.npz", x=np.zeros((10_000, 200)), y=np.arange(10_000))
    server.files["/a.npz"] = data = Path("a.npz").read_bytes()
    splits = datasets.npz(server.at("a.npz"))
    assert len(splits.train) == 8000 and callable(splits.classes) and not copies()
    asked = [map(int, r.removeprefix("bytes=").split("-")) for _, _, r in server.asked if r]
    assert len(data) > 15 << 20 and sum(last - first + 1 for first, last in asked) < 3 << 20
    assert not [one for one in server.asked if one[0] == "GET" and one[2] is None]
    assert splits.count_classes() == 10_000 and len(copies()) == 1


def test_a_server_that_sends_no_parts(server: Server) -> None:
    server.parts, server.files["/x.bin"] = False, DATA
    [file] = files(server.at("x.bin"))
    assert not copies()
    with file.open() as opened:
        opened.seek(-7, 2)
        assert opened.read() == DATA[-7:]
    assert len(copies()) == 1 and file.local().read_bytes() == DATA


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


@pytest.mark.parametrize("parts", [True, False])
def test_a_server_that_dies_midway(server: Server, parts: bool) -> None:
    server.parts, server.files["/x.bin"] = parts, DATA
    [file] = files(server.at("x.bin"))
    server.dies = 100_000
    place = re.escape(f"{server.at('x.bin')}: cannot be fetched: after ")
    with pytest.raises(DataError, match=rf"^{place}[\d,]+ of 300,000 bytes: .*") as caught:
        file.local()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert copies() == []
    server.dies = 0
    assert file.local().read_bytes() == DATA


def test_a_head_that_breaks_off(server: Server) -> None:
    server.files["/x.bin"] = DATA
    [file] = files(server.at("x.bin"))
    server.dies = 100_000
    with file.open() as opened:
        opened.seek(-9, 2)
        assert opened.read() == DATA[-9:] and opened.tell() == len(DATA)
        opened.seek(0)
        with pytest.raises(DataError, match=rf"^{file.name}: cannot be read \(Response payload"):
            opened.read()
    server.files.clear()
    with pytest.raises(DataError, match=rf"^{file.name}: cannot be read \(404 Not Found\)$"):
        file.open()


def test_a_fetch_that_breaks_off_is_continued(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dtrain.data import remote

    monkeypatch.setattr(remote, "_PIECE", 50_000)
    server.files["/x.bin"] = DATA
    [file] = files(server.at("x.bin"))
    answer, seen = Handler._answer, []

    def breaks(self: Handler, body: bool) -> None:
        first = f"{self.headers.get('Range')}"
        if "=100000-" in first and first not in seen:
            seen.append(first)
            self.close_connection = True
            return
        answer(self, body)

    monkeypatch.setattr(Handler, "_answer", breaks)
    assert file.local().read_bytes() == DATA and seen
    begins = [r for _, _, r in server.asked if r and r.startswith("bytes=0-")]
    assert len(begins) == 1, "it began anew"


def test_a_file_that_changes_while_it_is_fetched(server: Server) -> None:
    server.files["/x.bin"] = DATA
    [file] = files(server.at("x.bin"))
    for head, data in (({"ETag": '"two"'}, DATA), ({"ETag": '"one"'}, DATA + b"x")):
        server.head, server.files["/x.bin"] = head, data
        with pytest.raises(DataError, match=r"has changed while it was fetched$"):
            file.local()
    assert copies() == []


def test_a_killed_fetch_leaves_nothing_wrong(server: Server) -> None:
    server.files["/x.bin"] = DATA
    code = (
        "import os, sys\nfrom dtrain.data import files, remote\n"
        "remote._PIECE = 50_000\n"
        "pieces = remote.RemoteFile._pieces\n"
        "def some(self):\n"
        "  for n, piece in enumerate(pieces(self)):\n"
        "    if n == 3: os._exit(9)\n"
        "    yield piece\n"
        "remote.RemoteFile._pieces = some\n"
        "files.files(sys.argv[1])[0].local()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, server.at("x.bin")])
    assert done.returncode == 9 and [path.suffix for path in copies()] == [".tmp"]
    [file] = files(server.at("x.bin"))
    assert file.local().read_bytes() == DATA and len(copies()) == 1


def test_two_tasks_fetch_once(server: Server) -> None:
    server.files["/x.bin"] = DATA
    code = (
        "import sys; from dtrain.data.files import files\n"
        "file = files(sys.argv[1])[0]; print(flush=True); input()\n"
        "print(len(file.local().read_bytes()))"
    )
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", code, server.at("x.bin")], text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )
            )
            for _ in range(2)
        ]  # fmt: skip
        for each in both:
            assert each.stdout is not None and each.stdout.readline() == "\n"
        server.asked.clear()
        for each in both:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        assert [each.communicate()[0] for each in both] == ["300000\n"] * 2
    assert len([r for _, _, r in server.asked if r and r.startswith("bytes=0-")]) == 1


def test_a_copy_that_was_evicted_is_fetched_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files |= {"/x.bin": DATA, "/y.bin": DATA[::-1]}
    [x], [y] = files(server.at("x.bin")), files(server.at("y.bin"))
    first = x.local()
    os.utime(first, ns=(0, 0))
    release()
    monkeypatch.setenv(cache.BYTES, "400000")
    y.local()
    assert not first.exists(), "what was not used for longest goes"
    release()
    assert x.local().read_bytes() == DATA and x.local() == first


def test_a_cache_that_is_too_small(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files |= {"/x.bin": DATA, "/y.bin": DATA}
    [file] = files(server.at("x.bin"))
    monkeypatch.setenv(cache.BYTES, "299999")
    asked = len(server.asked)
    expected = f"dataset.path={file.name}: has 300,000 bytes, and the cache has room for 299,999"
    assert refusal(file.name).startswith(expected)
    assert not [one for one in server.asked[asked:] if one[0] == "GET"]
    with pytest.raises(UsageError) as caught:
        file.local()
    assert str(caught.value).startswith(expected) and f"{cache.BYTES}=300000" in str(caught.value)
    monkeypatch.setenv(cache.BYTES, "599999")
    assert "[" in refusal(server.at("*.bin")) and file.local().exists()


def test_data_is_refused_by_the_room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit that holds of what no process uses, where none is set."""
    file = remote.RemoteFile("s3://bucket/x.bin", {"size": 30 * 10**9}, "dataset.path")
    for free, fits in ((40 * 10**9, True), (25 * 10**9, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        refused = contextlib.nullcontext() if fits else pytest.raises(UsageError, match="has room")
        with refused:
            remote.check_room([file], "dataset.path")


def test_of_a_table_the_footers_are_read_where_they_are(server: Server) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, rows in (("a", range(30_000)), ("b", range(30_000, 70_000))):
        table = pa.table({"x": [float(row) for row in rows], "y": [row % 3 for row in rows]})
        pq.write_table(table, f"{name}.parquet", row_group_size=10_000, compression="none")
        server.files[f"/{name}.parquet"] = Path(f"{name}.parquet").read_bytes()
    splits = datasets.parquet(server.at("*.parquet"), target="y", validation_split=0)
    assert len(splits.train) == 70_000 and not copies()
    rows = np.array([5, 69_999, 31_234, 5])
    for _ in range(2):
        x, y = splits.train.take(rows)
        assert np.array_equal(x, rows) and np.array_equal(y, rows % 3)
        server.asked.clear()
    assert {path.suffix for path in copies()} >= {".parquet"}
    splits.train.take(rows[::-1])
    assert not server.asked


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
        assert opened.read() == DATA[-9:] and not copies()
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
    assert not copies(), "before a row is read"
    taken = splits.train.take(np.arange(1000)[::-1])
    assert np.array_equal(taken[0], x.astype(np.float32)[::-1]) and np.array_equal(
        taken[1], y[::-1]
    )
    assert splits.count_classes() == 3
    assert len(copies()) == 8
