"""A stand-in of Kubernetes' API server, made of kmock: its state, and what a test does to it.

What kmock lacks is added: uids, label selectors, logs that grow, refusals, and that what an object
owns goes with it.
"""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")
kmock = pytest.importorskip("kmock")

from aiohttp import web  # noqa: E402 - kmock's own

NAMESPACE = "team"
RESOURCES = {
    "jobsets": kmock.resource("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "jobs": kmock.resource("batch", "v1", "jobs"),
    "pods": kmock.resource("", "v1", "pods"),
    "secrets": kmock.resource("", "v1", "secrets"),
    "services": kmock.resource("", "v1", "services"),
    "networkpolicies": kmock.resource("networking.k8s.io", "v1", "networkpolicies"),
}
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "GET": "get"}


class _Emulator(kmock.KubernetesEmulator):  # type: ignore[misc]
    def __init__(self, server: Server):
        super().__init__()
        self.server = server
        for resource in RESOURCES.values():
            self.resources[resource] = {"namespaced": True}

    async def _handle(self, request: Any) -> Any:
        plural = getattr(request.resource, "plural", None)
        verb = VERBS[str(request.method.value).upper()]
        self.server.requests.append((verb, plural, request.name))
        if request.subresource == "log":
            return await self._log(request)
        refusal = self.server.refusals.get((verb, plural))
        if refusal is not None:
            status, message = refusal
            body = {"kind": "Status", "status": "Failure", "message": message, "code": status}
            return web.json_response(body if message else None, status=status)
        if verb == "create":
            meta = request.data["metadata"]
            meta.update(uid=str(uuid.uuid4()), namespace=NAMESPACE)
        gone = None
        if verb == "delete":
            key = (request.resource, request.namespace, request.name)
            gone = self.objects[key].raw["metadata"]["uid"] if key in self.objects else None
        try:
            answer = await super()._handle(request)
        except Exception as error:  # of what is there, or is not
            return await self._render_error(error)
        if gone is not None:
            self.server.collect(gone, request.name)
        return answer

    async def _serve_list(self, request: Any) -> Any:
        found = await super()._serve_list(request)
        wanted = dict(
            each.split("=") for each in request.params.get("labelSelector", "").split(",") if each
        )
        found["items"] = [
            each for each in found["items"]
            if wanted.items() <= each["metadata"].get("labels", {}).items()
        ]  # fmt: skip
        return found

    async def _log(self, request: Any) -> Any:
        if request.params.get("container") != "dtrain":  # a pod may have a mesh's, too
            body = {"message": f"a container name must be specified for pod {request.name}"}
            return web.json_response(body, status=400)
        key = (request.resource, request.namespace, request.name)
        if key not in self.objects or self.objects[key].deleted:
            return web.json_response({"message": f"{request.name} not found"}, status=404)
        answer = web.StreamResponse()
        await answer.prepare(request._raw_request)
        done, since = 0, request.params.get("sinceTime", "")
        while True:
            ended = request.name not in self.server.writing  # ORDER: looked at before the lines
            lines = self.server.logs.get(request.name, [])[done:]
            done += len(lines)
            for time, text in lines:
                if time >= since:
                    await answer.write(f"{time} {text}\n".encode())
            if ended or self.server.cut:
                self.server.cut = False
                return answer
            await asyncio.sleep(0.02)


class Server:
    """A cluster, as its API shows it, in a thread of its own.

    Attributes:
        requests: all that came: verb, plural, name.
        refusals: status and message by verb and plural; without a message, no JSON.
        logs: lines of pods, each with its time.
        writing: pods whose log may grow.
        cut: the log that is read ends, as if it were whole, once.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str | None, str | None]] = []
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        self.logs: dict[str, list[tuple[str, str]]] = {}
        self.writing: set[str] = set()
        self.cut = False
        self._loop = asyncio.new_event_loop()
        self._kmock = _Emulator(self)
        self._runner: Any = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = self._await(self._start(0))

    def _await(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _start(self, port: int) -> int:
        async def handle(request: Any) -> Any:
            return await self._kmock(request)

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        return int(self._runner.addresses[0][1])

    def down(self) -> None:
        """Answer no more; the state stays."""
        self._await(self._runner.cleanup())

    def up(self) -> None:
        """Answer again."""
        self._await(self._start(self.port))

    def close(self) -> None:
        """End the thread."""
        if self._loop.is_closed():
            return
        self._await(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def kubeconfig(self, path: Path) -> Path:
        """Write the file by which clients find this cluster."""
        context = {"cluster": "test", "user": "me", "namespace": NAMESPACE}
        whole = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [
                {"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.port}"}},
            ],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "test", "context": context}],
        }  # fmt: skip
        path.write_text(json.dumps(whole))
        return path

    def find(self, plural: str, name: str) -> dict[str, Any] | None:
        """Return an object."""

        async def look() -> Any:
            key = (RESOURCES[plural], NAMESPACE, name)
            if key not in self._kmock.objects or self._kmock.objects[key].deleted:
                return None
            return self._kmock.objects[key].raw

        found: dict[str, Any] | None = self._await(look())
        return found

    def names(self, plural: str) -> list[str]:
        """Return what there is of a kind."""

        async def look() -> list[str]:
            return [
                name for (resource, _, name), each in self._kmock.objects.items()
                if resource == RESOURCES[plural] and not each.deleted
            ]  # fmt: skip

        found: list[str] = self._await(look())
        return found

    def put(self, plural: str, body: dict[str, Any]) -> None:
        """Create or replace an object."""

        async def change() -> None:
            meta = body["metadata"]
            meta.setdefault("uid", str(uuid.uuid4()))
            key = (RESOURCES[plural], NAMESPACE, meta["name"])
            if key in self._kmock.objects and not self._kmock.objects[key].deleted:
                self._kmock.objects[key].patch(body)
            elif key in self._kmock.objects:
                self._kmock.objects[key].create(body)
            else:
                self._kmock.objects[key] = body

        self._await(change())

    def remove(self, plural: str, name: str) -> None:
        """Delete an object."""

        async def change() -> None:
            self._kmock.objects[RESOURCES[plural], NAMESPACE, name].delete()

        self._await(change())

    def collect(self, uid: str, job: str) -> None:
        """Delete what an object owned, and the pods of a job."""
        for (_, _, name), each in list(self._kmock.objects.items()):
            if each.deleted:
                continue
            meta = each.raw["metadata"]
            owners = [owner["uid"] for owner in meta.get("ownerReferences", [])]
            if uid in owners or meta.get("labels", {}).get("jobset.sigs.k8s.io/jobset-name") == job:
                self.writing.discard(name)
                each.delete()

    def write(self, pod: str, *lines: str) -> None:
        """Add lines to the log of a pod, each of another time."""
        log = self.logs.setdefault(pod, [])
        for line in lines:
            log.append((f"2026-11-23T00:{len(log) // 60:02}:{len(log) % 60:02}.000000000Z", line))
