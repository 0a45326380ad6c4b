"""Who serves files at addresses, by fsspec; credentials are those that it finds itself."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from dtrain import secrets
from dtrain.errors import UsageError, refuse
from dtrain.files.fields import Json, Values

#: By scheme: the extra of dtrain that has what is needed.
SCHEMES = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}
#: What says that a file has changed, by those who serve it: the first that is there.
_STAMPS = (
    "ETag", "etag", "md5Hash", "generation", "Content-MD5", "LastModified", "Last-Modified",
    "updated", "mtime",
)  # fmt: skip
#: One of fsspec's.
FileSystem = Any
_MAGIC = re.compile(r"[*?\[]")
#: Seconds in which a server that sends nothing is given up.
_SILENT = 60


def filesystem(
    address: str, key: str, schemes: Collection[str] = SCHEMES, hurries: bool = False
) -> FileSystem:
    """Return what knows the server of an address, one of fsspec's filesystems.

    Args:
        address: of a file, or a pattern of such.
        key: that names it, for messages.
        schemes: that the key takes.
        hurries: an error is to come soon: who asks tries again by itself.

    Raises:
        UsageError: there is none of that kind, or a package is not installed.
    """
    scheme = _scheme(address)
    extra = SCHEMES.get(scheme)
    if scheme not in schemes:
        refuse(key, f"dtrain reads no files of {scheme}://", address, accepted="a path, or an "
               "address of " + ", ".join(f"{name}://" for name in schemes))  # fmt: skip
    options: Json = {}
    try:
        import fsspec

        if extra == "http":
            import aiohttp

            # fsspec's own gives up what takes five minutes in all.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENT, sock_read=_SILENT)
            options = {"client_kwargs": {"timeout": timeout}}
        if extra == "s3" and hurries:
            options = {"config_kwargs": {"retries": {"max_attempts": 1}}}
        found = fsspec.filesystem(scheme, **options)
        if extra == "s3" and hurries:
            found.retries = 1  # of s3fs, around those of botocore
        return found
    except ImportError as error:
        raise UsageError(key, f"{scheme}:// needs packages that are not installed ({error})",
                         address, accepted="its packages",
                         typed=f'pip install "dtrain[{extra}]"') from None  # fmt: skip


def _scheme(address: str) -> str:
    return address.partition("://")[0].lower()


def is_pattern(address: str) -> bool:
    """Say whether an address may be a pattern of such."""
    parts = urlsplit(address)
    if SCHEMES[_scheme(address)] == "http":  # there ? begins a query
        return bool(set("*[") & set(parts.path))
    return bool(_MAGIC.search(address))


def facts(info: Values) -> tuple[int, str]:
    """Return the size and the stamp of a file."""
    size = int(info["size"])
    stamp = next((str(info[name]) for name in _STAMPS if info.get(name)), "")
    return size, f"{size}-{stamp.strip()}"


def reason(error: BaseException) -> str:
    """Return what is wrong, in a few words, without passwords."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # of a server that is not there fsspec says that a file is not
    status = getattr(error, "status", None)  # of HTTP
    text = f"{status} {getattr(error, 'message', '')}" if status else str(error)
    line = (text.strip() or type(error).__name__).split("\n")[0]
    return secrets.mask(line)[:300]
