"""What a configuration may read of the user's environment, and whose a run folder is.

A variable is read only if the user names it: in an override or a file of this very command, in
``DTRAIN_ENV``, or in the command that began the run that is resumed. That one is known by its
signature, made with a key that lies in the user's home and in no run folder: the overrides of a
folder from elsewhere have none, and ask for consent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets as randomness
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import Node, OmegaConf

from dtrain.config import given as given_modules
from dtrain.config.overrides import key_of
from dtrain.errors import UsageError, refuse
from dtrain.files import writing

#: Names of variables, with commas between them, that a configuration from elsewhere may read.
ENV = "DTRAIN_ENV"
#: Variables that hold what was typed: this, and the key. They exist for configurations alone.
PREFIX = "DTRAIN_SECRET_"
_REFERENCE = re.compile(r"\$\{\s*oc\.env\s*:\s*['\"]?(\w+)")
MOST = 1000  # overrides of a command that a folder holds
#: Overrides that say where a new folder goes.
_FOLDERS = ("output_dir", "hydra.run.dir", "hydra.sweep.dir")
_LARGEST = 1_000_000  # bytes of a file that variables are looked for in
_NO_DEFAULT = object()

#: Variables that this command names.
_named: set[str] = set()
#: What the resolver has read since :func:`begin` or :func:`watch`: name and value.
read: dict[str, str] = {}
#: Keys of the overrides that the user typed; None of a command that takes none from a folder.
_typed: set[str] | None = None


def begin(words: Iterable[str], config_dir: str | None) -> None:
    """Begin a command: what it names is the user's own.

    Args:
        words: the command line as it was typed.
        config_dir: of ``--config-dir`` there.
    """
    global _typed
    _named.clear()
    read.clear()
    _typed = None
    grant(words, config_dir)


def grant(words: Iterable[str], config_dir: str | None) -> None:
    """Let the variables be read that ``words`` and the files of ``config_dir`` name."""
    for override in words:
        _named.update(_REFERENCE.findall(override))
    if config_dir is not None:
        for path in Path(config_dir).rglob("*.yaml"):
            if path.is_file() and path.stat().st_size <= _LARGEST:
                _named.update(_REFERENCE.findall(path.read_text(errors="replace")))


def accept(key: str, folder: str, command: Any, given: Iterable[str]) -> tuple[list[str], Any]:
    """Return the overrides and the ``--config-dir`` of a run or sweep that is resumed or forked.

    Args:
        key: ``resume``, ``fork`` or ``sweep.resume``.
        folder: what it names.
        command: what the folder holds of the command that began it.
        given: the overrides that the user typed.

    Raises:
        UsageError: they are no overrides: an option of the command line would be obeyed.
        DamagedFile: code that was given to it from Python was changed.
    """
    global _typed
    found = command if isinstance(command, Mapping) else {}
    overrides: Any = found.get("overrides")
    config_dir: Any = found.get("config_dir")
    if isinstance(overrides, list) and len(overrides) > MOST:
        refuse(key, f"its command holds {len(overrides):,} overrides", folder,
               accepted=f"up to {MOST:,}, as dtrain wrote them",
               hint=f"{key}=outputs/DATE/TIME_NAME")  # fmt: skip
    wrong = [
        override
        for override in (overrides if isinstance(overrides, list) else [None])
        if not isinstance(override, str) or not _is_override(override)
    ]
    if not isinstance(config_dir, str | None) or (config_dir or "").startswith("-"):
        wrong.append(config_dir)
    if wrong:
        refuse(key, f"its command holds {str(wrong[0])[:80]!r}, which is no override", folder,
               accepted="a folder as dtrain wrote it",
               hint=f"{key}=outputs/DATE/TIME_NAME")  # fmt: skip
    own = grant_own(found)
    given_modules.offer(Path(folder), overrides, own)
    if not own:
        words = map(key_of, given)
        _typed = (_typed or set()) | set(words)
        if key == "fork":  # where its own new folder goes is the user's to say
            overrides = [override for override in overrides if key_of(override) not in _FOLDERS]
    return overrides, config_dir


def _is_override(override: str) -> bool:
    """Say whether it has a key, is no option of the command line, and no longer than one can be."""
    sound = bool(key_of(override)) and not override.startswith("-") and "\0" not in override
    return sound and len(override) < 2**17


def grant_own(command: Any) -> bool:
    """Let the variables be read that a command names, if it is this user's own.

    Args:
        command: what a folder holds of the command that began it.
    """
    if not isinstance(command, Mapping):
        return False
    core = _core(command.get("overrides"), command.get("config_dir"))
    if not is_own(core, command.get("signature")):
        return False
    grant(core["overrides"], core["config_dir"])
    return True


def check_named(key: str, value: object, hint: str) -> None:
    """Refuse what leaves this machine by a value that only a folder from elsewhere gives.

    MLflow sends the user's name and password to whatever server it is given. What is asked for data
    at an address is signed with the user's credentials, and it may be a server that this machine
    alone reaches. A launcher of other hosts may run commands, and say where the user's keys and
    variables go.

    Raises:
        UsageError: saying how to consent.
    """
    if not _is_named(key):
        refuse(key, "the run folder names it, which another user or machine made", value,
               accepted="what you type yourself", typed=hint)  # fmt: skip


def _is_named(key: str) -> bool:
    """Whether the value of ``key`` is the user's choice, and no folder's from elsewhere."""
    return _typed is None or key in _typed


def allowed(name: str) -> bool:
    """Say whether a configuration may read the variable ``name``."""
    consented = (part.strip() for part in os.environ.get(ENV, "").split(","))
    return name.startswith(PREFIX) or name in _named or name in consented


def refusal(key: str, name: str) -> UsageError:
    """Return what to raise where a configuration reads a variable that it may not."""
    return UsageError(
        key,
        f"asks for the variable {name} of your environment, which nothing that you typed names",
        f"${{oc.env:{name}}}",
        accepted="variables named by your overrides, by a file of your --config-dir, or by " + ENV,
        hint=f"{ENV}={name} in front of the command, if it may be read and sent on",
    )  # fmt: skip


def _env(key: str, default: Any = _NO_DEFAULT, *, _node_: Node) -> str | None:
    """Resolve ``${oc.env:KEY}``, as OmegaConf's own resolver does, for what may be read."""
    if key in os.environ:
        if not allowed(key):
            raise refusal(_node_._get_full_key(None), key)
        read[key] = os.environ[key]
        return read[key]
    if default is _NO_DEFAULT:
        raise KeyError(f"the environment has no variable {key}")
    return None if default is None else str(default)


# However an interpolation is put together (`${oc.decode:...}`, `${${a}.env:NAME}`), it ends here.
OmegaConf.register_new_resolver("oc.env", _env, replace=True)


def own_error(error: BaseException | None) -> UsageError | None:
    """Return the refusal that an exception of Hydra's or OmegaConf's comes from."""
    while error is not None:
        if isinstance(error, UsageError):
            return error
        error = error.__cause__ or error.__context__  # OmegaConf hides what its resolvers raise
    return None


def signed(overrides: list[str], config_dir: str | None, uri: str | None) -> dict[str, Any]:
    """Return the contents of a folder's command, signed as this user's own.

    Args:
        overrides, config_dir: what it is composed from.
        uri: ``tracking.uri`` as it is written, with references.
    """
    core = _core(overrides, config_dir)
    return {
        **core,
        # Words from elsewhere stay such: consent is for one command.
        "signature": signature(core) if _typed is None else None,
        "uri_signature": signature({"uri": uri}) if _is_named("tracking.uri") else None,
    }


def is_own_address(command: Any, uri: str | None) -> bool:
    """Say whether this user's own command has put ``uri`` into the folder of ``command``."""
    found = command.get("uri_signature") if isinstance(command, Mapping) else None
    return uri is None or is_own({"uri": uri}, found)


def _core(overrides: Any, config_dir: Any) -> dict[str, Any]:
    return {"overrides": overrides, "config_dir": config_dir}


def is_own(value: Any, theirs: Any) -> bool:
    """Say whether ``theirs`` is the signature of ``value`` by this user's key."""
    ours = signature(value)
    return isinstance(theirs, str) and ours is not None and hmac.compare_digest(
        ours.encode(), theirs.encode(errors="replace")
    )  # fmt: skip


def signature(value: Any) -> str | None:
    """Return this user's signature of a JSON value; None where there is no place for a key."""
    key = _key()
    text = json.dumps(value, sort_keys=True)
    return None if key is None else hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _key() -> bytes | None:
    """Return the user's key, made at its first use; None where there is no place for one."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(home) / "dtrain" / "key"
    try:
        if not path.is_file():
            writing.write_key(path, randomness.token_bytes(32))
        key = path.read_bytes()
    except OSError:
        return None
    return key if len(key) == 32 else None
