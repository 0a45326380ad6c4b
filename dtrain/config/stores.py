"""Addresses of tracking stores, as MLflow takes them."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any
from urllib.parse import urlsplit

from dtrain.config.forms import PATH
from dtrain.config.ranges import Form

_STORES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks", "uc")


def _store(value: Any) -> str | None:
    """Say why MLflow would not take ``value`` as the address of a tracking store."""
    problem = PATH.problem(value)  # of one line, and no longer
    if problem is not None:
        return problem
    scheme, colon, rest = value.partition(":")
    scheme = scheme.partition("+")[0]
    if not colon and value not in ("databricks", "uc"):
        return "has no scheme: MLflow keeps no runs in plain files any more"
    if scheme == "file":
        return "MLflow keeps no runs in plain files any more"
    if scheme not in _STORES and scheme not in _plugins():
        return f"MLflow has no store of the scheme {scheme!r}"
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is no address ({error})"
    if scheme in ("postgresql", "mysql", "mssql"):
        return _driver(value)
    if scheme in ("http", "https") and not host:
        return "names no host"
    if scheme == "sqlite" and not re.match(r"///[^?]*[^/?]", rest):
        return "names no file"
    return None


def _driver(address: str) -> str | None:
    """Say why SQLAlchemy, with which MLflow reads databases, cannot read this one."""
    from sqlalchemy.engine import make_url

    try:
        make_url(address).get_dialect().import_dbapi()
    except ImportError as error:
        return f"the driver of this database is not installed ({error})"
    except Exception as error:  # of its own, for each way to be no address
        return f"is no address of a database ({' '.join(str(error).split())})"
    return None


def _plugins() -> set[str]:
    return {found.name for found in importlib.metadata.entry_points(group="mlflow.tracking_store")}


STORE = Form(
    f"null, or an address of {', '.join(_STORES)}", _store, "http://HOST:PORT"
)  # fmt: skip
