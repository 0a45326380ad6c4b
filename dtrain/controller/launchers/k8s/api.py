"""The API of a cluster of Kubernetes, by its own client: what a job needs of it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtrain.controller.launchers.cluster_env.kubernetes import POD
from dtrain.controller.launchers.k8s.manifest import CONTAINER, INSTANCE, MANAGED, Object
from dtrain.errors import UsageError

#: Seconds until a connection is there, and until an answer is.
TIMEOUT = (5.0, 30.0)
#: The same where what comes is a log, which may be silent: it is asked for again then, for a
#: connection that was forgotten on its way is silent, too.
SILENCE = (5.0, 60.0)
_GROUPS = {
    "JobSet": "apis/jobset.x-k8s.io/v1alpha2", "Job": "apis/batch/v1",
    "NetworkPolicy": "apis/networking.k8s.io/v1",
}  # fmt: skip
_PLURAL = {"NetworkPolicy": "networkpolicies"}
_NEEDED = "a namespace in which you may create JobSets or Jobs, Secrets, Services and " + (
    "NetworkPolicies, and read Pods and their logs"
)


class Away(Exception):
    """The API server does not answer now."""


class Taken(Exception):
    """There is an object of this kind and name."""


class Api:
    """One namespace of a cluster.

    Args:
        context: of the kubeconfig; None for the current one, or that of the pod this runs in.
        namespace: None for that of the context.

    Attributes:
        namespace: which it is.

    Raises:
        UsageError: the client is not installed, or there is no such context.
    """

    def __init__(self, context: str | None, namespace: str | None):
        try:
            from kubernetes import client
        except ImportError:
            raise UsageError(
                "launcher.apply", "true", "the client of Kubernetes is not installed",
                "launcher.apply=false, which writes the manifest, or the extra k8s",
                "pip install 'dtrain[k8s]'",
            ) from None  # fmt: skip
        found = client.Configuration()
        self.namespace = namespace or _load(found, context)
        found.retries = False  # this command says what is wrong, and tries again by itself
        self._host = found.host
        self._client = client.ApiClient(found)

    def create(self, body: Object) -> Object:
        """Create an object and return it as it is.

        Raises:
            Taken: there is one of its kind and name.
            UsageError: the cluster refuses it.
            Away: it does not answer.
        """
        kind = body["kind"]
        # ORDER: strict: an older JobSet would drop a rule that it does not know, and restart what
        # is to fail.
        return self._send("POST", kind, body=body, query=[("fieldValidation", "Strict")]) or {}

    def read(self, kind: str, name: str) -> Object | None:
        """Return an object, None if there is none.

        Raises:
            UsageError, Away: as of :meth:`create`.
        """
        return self._send("GET", kind, name)

    def change(self, kind: str, name: str, body: Object) -> None:
        """Merge ``body`` into an object.

        Raises:
            UsageError, Away: as of :meth:`create`.
        """
        self._send("PATCH", kind, name, body=body)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, and with it what it owns; one that is gone is no error.

        Raises:
            UsageError, Away: as of :meth:`create`.
        """
        self._send("DELETE", kind, name, query=[("propagationPolicy", "Foreground")])

    def pods(self, job: str) -> list[Object]:
        """Return the pods of a job.

        Raises:
            UsageError, Away: as of :meth:`create`.
        """
        selector = f"{INSTANCE}={job},{MANAGED}=dtrain"
        found = self._send("GET", "Pod", query=[("labelSelector", selector)])
        items: list[Object] = (found or {}).get("items", [])
        return items

    def log(self, pod: str, since: str | None) -> Iterator[tuple[str, str]]:
        """Yield the lines of a pod's log as they come, each with its time.

        A server ends this where the pod ends, and whenever it likes (a restart, a time limit). A
        pod that is gone has no lines.

        Args:
            pod: its name.
            since: a time, from which on lines are wanted; None for all.

        Raises:
            UsageError, Away: as of :meth:`create`.
        """
        # The container is named: a mesh may have put another beside it.
        query = [("container", CONTAINER), ("follow", "true"), ("timestamps", "true")]
        query += [] if since is None else [("sinceTime", since)]
        path = f"{self._path('Pod')}/{pod}/log"
        with self._reported("get", "Pod"):
            try:
                opened = self._request("GET", path, query=query, stream=True)
            except self._refusals() as error:
                if error.status == 404:
                    return
                raise
            with contextlib.closing(opened) as answer:
                yield from _lines(answer)

    def _path(self, kind: str) -> str:
        plural = _PLURAL.get(kind, f"{kind.lower()}s")
        return f"/{_GROUPS.get(kind, 'api/v1')}/namespaces/{self.namespace}/{plural}"

    def _send(
        self, method: str, kind: str, name: str = "", body: Object | None = None, query: Any = ()
    ) -> Object | None:
        path = f"{self._path(kind)}/{name}".rstrip("/")
        verb = _VERBS[method] if name or method != "GET" else "list"
        with self._reported(verb, kind):
            try:
                answer = self._request(method, path, body, query)
            except self._refusals() as error:
                if error.status == 404 and name:
                    return None
                raise
            found: Object = json.loads(answer.data)
            return found

    def _request(
        self, method: str, path: str, body: Any = None, query: Any = (), stream: bool = False
    ) -> Any:
        """Send a request; return the open response of urllib3."""
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "*/*" if stream else "application/json", "Content-Type": content}
        request = self._client.param_serialize(
            method, path, query_params=list(query), header_params=headers, body=body,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        timeout = SILENCE if stream else TIMEOUT
        answer = self._client.call_api(*request, _request_timeout=timeout)
        if not 200 <= answer.status <= 299:
            answer.read()
            self._client.response_deserialize(answer, {})  # raises what it stands for
        return answer.response

    @staticmethod
    def _refusals() -> Any:
        from kubernetes.client.exceptions import ApiException

        return ApiException

    @contextlib.contextmanager
    def _reported(self, verb: str, kind: str) -> Iterator[None]:
        """Put a sentence in the place of what the client raises."""
        from urllib3.exceptions import HTTPError

        try:
            yield
        except self._refusals() as error:
            raise self._refused(error, verb, kind) from None
        except (HTTPError, OSError, ValueError) as error:
            reason = " ".join(str(error).split()).rpartition(": ")[2]
            raise Away(f"the API server at {self._host} does not answer: {reason}") from None

    def _refused(self, error: Any, verb: str, kind: str) -> Exception:
        try:
            text = str(json.loads(error.body)["message"])
        except (ValueError, KeyError, TypeError):
            text = ""
        said = f": {' '.join(text.split())}" if text else ""
        plural = _PLURAL.get(kind, f"{kind.lower()}s")
        if error.status == 409:
            return Taken(text)
        if error.status == 403:
            return UsageError(
                "launcher.namespace", self.namespace, f"you may not {verb} {plural} there{said}",
                _NEEDED, f"kubectl auth can-i {verb} {plural} -n {self.namespace}",
            )  # fmt: skip
        if error.status == 401:
            return UsageError(
                "launcher.context", self._host, f"the cluster does not know who you are{said}",
                "credentials that are valid", "kubectl auth whoami",
            )  # fmt: skip
        if error.status == 404 and kind == "JobSet" and "namespaces" not in text:
            return UsageError(
                "launcher.kind", "jobset", "the cluster has no JobSet v1alpha2",
                "job, or a cluster in which JobSet 0.10 or newer is installed",
                "launcher.kind=job",
            )  # fmt: skip
        if error.status == 404:
            return UsageError("launcher.namespace", self.namespace, f"is not there{said}", _NEEDED,
                              "kubectl get namespaces")  # fmt: skip
        if error.status >= 500 or error.status in (0, 429):
            return Away(f"the API server at {self._host} answers {error.status}{said}")
        return UsageError(
            "launcher", "k8s", f"the cluster refuses to {verb} {plural} ({error.status}){said}",
            "what it takes", "dry_run=true, which prints the manifest",
        )  # fmt: skip


def _lines(answer: Any) -> Iterator[tuple[str, str]]:
    """Yield the time and the text of the whole lines that an open response has."""
    rest = b""
    for part in answer.stream(amt=None):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            time, _, text = line.decode(errors="replace").partition(" ")
            yield time, text


#: Of a pod: the namespace that it is in.
_OWN = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_VERBS = {"POST": "create", "GET": "get", "PATCH": "patch", "DELETE": "delete"}


def _load(found: Any, context: str | None) -> str:
    """Read how a cluster is reached, by the kubeconfig or from the pod that this command runs in.

    Args:
        found: the client's configuration, which is filled in.
        context: of the kubeconfig; None for the current one.

    Returns:
        The namespace.

    Raises:
        UsageError: neither says so.
    """
    import yaml
    from kubernetes import config

    file = os.environ.get("KUBECONFIG")  # the client looks once, when it is imported
    try:
        try:
            config.load_kube_config(file, context=context, client_configuration=found)
        except config.ConfigException:
            if context is not None or POD not in os.environ:
                raise
            config.load_incluster_config(client_configuration=found)
            return Path(_OWN).read_text().strip()
        contexts, active = config.list_kube_config_contexts(file)
    except (config.ConfigException, OSError, yaml.YAMLError) as error:
        raise UsageError(
            "launcher.context", context or "null",
            f"it is not known how a cluster is reached: {' '.join(str(error).split())}",
            "a context that `kubectl config get-contexts` lists", "launcher.context=NAME",
        ) from None  # fmt: skip
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")
