"""A stand-in of Kubernetes' API server that a real ``kubectl`` takes for one.

It serves discovery, the part of OpenAPI that validation asks for, objects (server-side apply,
watches, selectors) and logs that grow. A test plays the controllers and the pods.
"""

from __future__ import annotations

import copy
import json
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

Object = dict[str, Any]

if shutil.which("kubectl") is None:
    pytest.skip("kubectl is not installed", allow_module_level=True)

NAMESPACE = "team"
KINDS = {
    "jobsets": ("jobset.x-k8s.io/v1alpha2", "JobSet"), "jobs": ("batch/v1", "Job"),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
    "pods": ("v1", "Pod"), "secrets": ("v1", "Secret"), "services": ("v1", "Service"),
}  # fmt: skip


def _root(version: str) -> str:
    return f"apis/{version}" if "/" in version else f"api/{version}"


def _discovery(path: str) -> Object | None:
    """Return what describes the API at a path; None where it is something else."""
    groups = [version.split("/") for version, _ in KINDS.values() if "/" in version]
    versions = {_root(version) for version, _ in KINDS.values()}
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "apis":
        found = [
            {"name": name, "versions": [{"groupVersion": f"{name}/{v}", "version": v}],
             "preferredVersion": {"groupVersion": f"{name}/{v}", "version": v}}
            for name, v in groups
        ]  # fmt: skip
        return {"apiVersion": "v1", "kind": "APIGroupList", "groups": found}
    if path in versions:
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        resources = [
            {"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind,
             "verbs": verbs}
            for plural, (version, kind) in KINDS.items() if _root(version) == path
        ]  # fmt: skip
        whole = {"apiVersion": "v1", "kind": "APIResourceList", "resources": resources}
        return {**whole, "groupVersion": path.partition("/")[2]}
    if path == "openapi/v3":
        return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in versions}}
    if path.startswith("openapi/v3/"):
        root = path.removeprefix("openapi/v3/")
        paths = {}
        for plural, (version, kind) in KINDS.items():
            if _root(version) == root:
                group, _, number = version.rpartition("/")
                patch = {
                    "parameters": [{"name": "fieldValidation", "in": "query"}],
                    "x-kubernetes-group-version-kind":
                        {"group": group, "version": number, "kind": kind},
                }  # fmt: skip
                paths[f"/{root}/namespaces/{{namespace}}/{plural}/{{name}}"] = {"patch": patch}
        return {"openapi": "3.0.0", "info": {"title": "t", "version": "1"}, "paths": paths}
    return None


def _merge(here: Object, more: Object) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(here.get(key), dict):
            _merge(here[key], value)
        else:
            here[key] = value


def _selected(body: Object, query: dict[str, str]) -> bool:
    labels = body["metadata"].get("labels", {})
    wanted = [each.split("=") for each in query.get("labelSelector", "").split(",") if each]
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return all(labels.get(k) == v for k, v in wanted) and name in ("", body["metadata"]["name"])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do(self) -> None:
        cluster: Server = self.server.cluster
        parts = urlsplit(self.path)
        path = parts.path.strip("/")
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = yaml.safe_load(self.rfile.read(length)) if length else None
        described = _discovery(path)
        if described is not None:
            return self._answer(200, described)
        words = path.partition(f"namespaces/{NAMESPACE}/")[2].split("/")
        if words[0] not in KINDS:
            return self._status(404, "the server could not find the requested resource", "NotFound")
        plural, name, below = (*words, "", "")[:3]
        verb = {"PATCH": "apply", "DELETE": "delete"}.get(self.command, "get")
        if below == "log":
            verb = "log"
        elif "watch" in query:
            verb = "watch"
        with cluster.changed:
            cluster.requests.append((verb, plural, name))
            refusal = cluster.refusals.get((verb, plural))
        if refusal is not None:
            return self._status(*refusal)
        if verb == "log":
            return self._stream(cluster.lines(name, query.get("sinceTime", "")))
        if verb == "watch":
            return self._stream(cluster.watch(plural, query))
        if verb == "apply":
            return self._answer(200, cluster.put(plural, {**body, "metadata": {
                **body["metadata"], "namespace": NAMESPACE}}))  # fmt: skip
        if not name:
            items = [each for each in cluster.all(plural) if _selected(each, query)]
            version, kind = KINDS[plural]
            meta = {"resourceVersion": str(len(cluster.events))}
            return self._answer(200, {"apiVersion": version, "kind": f"{kind}List",
                                      "metadata": meta, "items": items})  # fmt: skip
        there = cluster.find(plural, name)
        if there is None:
            group = KINDS[plural][0].rpartition("/")[0]
            whole = f"{plural}.{group}" if group else plural
            return self._status(404, f'{whole} "{name}" not found', "NotFound")
        if verb == "delete":
            cluster.remove(plural, name)
        return self._answer(200, there)

    do_GET = do_PATCH = do_DELETE = do

    def _status(self, code: int, message: str, reason: str = "Failed") -> None:
        self._answer(code, {"apiVersion": "v1", "kind": "Status", "status": "Failure",
                            "message": message, "reason": reason, "code": code})  # fmt: skip

    def _answer(self, code: int, body: Object) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, parts: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for part in parts:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # whoever asked has gone
            self.close_connection = True


class Server:
    """A cluster, as its API shows it.

    Attributes:
        requests: those about objects: verb, plural, name.
        refusals: code and message by verb and plural.
        logs: lines of pods, each with its time.
        writing: pods whose log may grow.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        self.logs: dict[str, list[tuple[str, str]]] = {}
        self.writing: set[str] = set()
        self.events: list[tuple[str, str, Object]] = []  # type, plural, object
        self.changed = threading.Condition()
        self._objects: dict[tuple[str, str], Object] = {}
        self._connections = 0  # those of an earlier number are to end
        self._start(0)

    def _start(self, port: int) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self._http.daemon_threads = True
        self._http.cluster = self  # type: ignore[attr-defined]
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        """Answer no more, and end what is open; the state stays."""
        self._http.shutdown()
        self._http.server_close()
        self.cut()

    def up(self) -> None:
        """Answer again."""
        self._start(self.port)

    close = down

    def cut(self) -> None:
        """End all open logs and watches, as a server does that restarts."""
        with self.changed:
            self._connections += 1
            self.changed.notify_all()

    def kubeconfig(self, path: Path) -> Path:
        """Write the file by which clients find this cluster."""
        context = {"cluster": "test", "user": "me", "namespace": NAMESPACE}
        server = {"server": f"http://127.0.0.1:{self.port}"}
        whole = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "test", "context": context}],
        }  # fmt: skip
        path.write_text(json.dumps(whole))
        return path

    def find(self, plural: str, name: str) -> Object | None:
        """Return an object."""
        with self.changed:
            return copy.deepcopy(self._objects.get((plural, name)))

    def all(self, plural: str) -> list[Object]:
        """Return what there is of a kind."""
        with self.changed:
            return [copy.deepcopy(o) for (p, _), o in self._objects.items() if p == plural]

    def names(self, plural: str) -> list[str]:
        """Return the names of what there is of a kind."""
        return [each["metadata"]["name"] for each in self.all(plural)]

    def put(self, plural: str, body: Object) -> Object:
        """Create an object, or merge fields into it."""
        with self.changed:
            key = (plural, body["metadata"]["name"])
            version, kind = KINDS[plural]
            new = {"apiVersion": version, "kind": kind,
                   "metadata": {"uid": str(uuid.uuid4()), "namespace": NAMESPACE}}  # fmt: skip
            event = "MODIFIED" if key in self._objects else "ADDED"
            whole = self._objects.setdefault(key, new)
            _merge(whole, copy.deepcopy(body))
            self._happen(event, plural, whole)
            return copy.deepcopy(whole)

    def remove(self, plural: str, name: str) -> None:
        """Delete an object, and the pods of a job."""
        with self.changed:
            gone = self._objects.pop((plural, name))
            self._happen("DELETED", plural, gone)
            for (other, each), body in list(self._objects.items()):
                instance = body["metadata"].get("labels", {}).get("app.kubernetes.io/instance")
                if plural in ("jobs", "jobsets") and other == "pods" and instance == name:
                    self.writing.discard(each)
                    self.remove(other, each)

    def _happen(self, event: str, plural: str, body: Object) -> None:
        self.events.append((event, plural, copy.deepcopy(body)))
        body["metadata"]["resourceVersion"] = str(len(self.events))
        self.events[-1][2]["metadata"]["resourceVersion"] = str(len(self.events))
        self.changed.notify_all()

    def watch(self, plural: str, query: dict[str, str]) -> Iterator[bytes]:
        """Yield events since a version, until all connections are cut."""
        at, connections = int(query.get("resourceVersion") or 0), self._connections
        while True:
            with self.changed:
                while len(self.events) == at and self._connections == connections:
                    self.changed.wait(5)
                new = self.events[at:]
                at += len(new)
            for event, of, body in new:
                if of == plural and _selected(body, query):
                    yield json.dumps({"type": event, "object": body}).encode() + b"\n"
            if self._connections != connections:
                return

    def lines(self, pod: str, since: str) -> Iterator[bytes]:
        """Yield the lines of a pod's log that are as new as ``since``."""
        done, connections = 0, self._connections
        while True:
            ended = pod not in self.writing or self._connections != connections
            # ORDER: whether it has ended is looked at before the lines are.
            lines = self.logs.get(pod, [])[done:]
            done += len(lines)
            for moment, text in lines:
                if moment.partition(".")[0] >= since.rstrip("Z"):
                    yield f"{moment} {text}\n".encode()
            if ended:
                return
            time.sleep(0.02)

    def write(self, pod: str, *lines: str) -> None:
        """Add lines to the log of a pod, each of another time."""
        log = self.logs.setdefault(pod, [])
        for line in lines:
            log.append((f"2026-11-23T00:{len(log) // 60:02}:{len(log) % 60:02}.000000001Z", line))
