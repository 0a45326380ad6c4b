"""What a configuration may read of the environment, how it is written, and whose a run folder is.

A variable is read only if the user names it: in an override or a file of this very command, in
``DTRAIN_ENV``, or in the command that began the run that is resumed. That one is known by its
signature, made with a key that lies in the user's home and in no run folder: the overrides of a
folder from elsewhere have none, and ask for consent.

A variable that is named like a secret, or stands where a secret does, stays a reference
(``${oc.env:NAME}``) in all that is written; any other becomes its value. A secret that was typed
moves to a variable of this process's environment, which the tasks inherit. References are resolved
where a value is used.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets as randomness
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf

from dtrain import secrets
from dtrain.config import trust
from dtrain.config.overrides import key_of, parse
from dtrain.errors import DamagedFile, UsageError, refuse
from dtrain.files import reading, writing
from dtrain.host import pickles
from dtrain.host.python_path import FOLDER, RESERVED

#: Names of variables, with commas between them, that a configuration from elsewhere may read.
ENV = "DTRAIN_ENV"
#: Variables that hold what was typed: this, and the key. They exist for configurations alone.
PREFIX = "DTRAIN_SECRET_"
MOST = 1000  # overrides of a command that a folder holds
#: Overrides that say where a new folder goes.
_FOLDERS = ("output_dir", "hydra.run.dir", "hydra.sweep.dir")
_REFERENCE = re.compile(r"\$\{oc\.env:\s*['\"]?(\w+)['\"]?\s*(,?)")
#: A reference that can be replaced in an override, and a value that needs no quotes there.
_SIMPLE, _UNQUOTED = re.compile(r"\$\{oc\.env:(\w+)\}"), re.compile(r"[\w./+-]+")
_GIVEN = re.compile(r"\bgiven_[0-9a-f]{32}\b")
_SHORTEST = 4  # of a secret that is looked for in values which other values are part of
_NO_DEFAULT = object()


# -- whose a run folder is


def accept(key: str, folder: str, command: Any, words: Iterable[str]) -> tuple[list[str], Any]:
    """Return the overrides and the ``--config-dir`` of a run or sweep that is resumed or forked.

    Args:
        key: ``resume``, ``fork`` or ``sweep.resume``.
        folder: what it names.
        command: what the folder holds of the command that began it.
        words: the overrides that the user typed.

    Raises:
        UsageError: they are no overrides: an option of the command line would be obeyed.
        DamagedFile: code that was given to it from Python was changed.
    """
    core = _core(command)
    overrides, config_dir = core["overrides"], core["config_dir"]
    wrong: list[Any] = [None]
    if isinstance(overrides, list):
        wrong = [f"{len(overrides):,} overrides"] if len(overrides) > MOST else []
        wrong += [each for each in overrides if not _is_override(each)]
    if not isinstance(config_dir, str | None) or str(config_dir).startswith("-"):
        wrong.append(config_dir)
    if wrong:
        refuse(key, f"its command holds {str(wrong[0])[:80]!r}, which is no override", folder,
               accepted=f"a folder as dtrain wrote it, with up to {MOST:,} overrides",
               hint=f"{key}=outputs/DATE/TIME_NAME")  # fmt: skip
    own = grant_own(command)
    offer_given(Path(folder), overrides, own)
    if not own:
        trust.command().doubt(words)
        if key == "fork":  # where its own new folder goes is the user's to say
            overrides = [override for override in overrides if key_of(override) not in _FOLDERS]
    return overrides, config_dir


def _is_override(text: Any) -> bool:
    """Say whether it has a key, is no option of the command line, and no longer than one can be."""
    if not isinstance(text, str) or text.startswith("-") or "\0" in text or len(text) >= 2**17:
        return False
    return bool(key_of(text))


def grant_own(command: Any) -> bool:
    """Let be read and called what the command of a folder names, if it is this user's own."""
    core = _core(command)
    own = isinstance(command, Mapping) and is_own(core, command.get("signature"))
    if own:
        trust.command().grant(core["overrides"], core["config_dir"])
    return own


def check_named(key: str, value: object, hint: str) -> None:
    """Refuse what leaves this machine by a value that only a folder from elsewhere gives.

    MLflow sends the user's name and password to whatever server it is given. What is asked for data
    at an address is signed with the user's credentials, and it may be a server that this machine
    alone reaches. A launcher of other hosts may run commands, and say where the user's keys and
    variables go.

    Raises:
        UsageError: saying how to consent.
    """
    if not trust.command().owns(key):
        refuse(key, "the run folder names it, which another user or machine made", value,
               accepted="what you type yourself", typed=hint)  # fmt: skip


def sign_command(overrides: list[str], config_dir: str | None, places: Any) -> dict[str, Any]:
    """Return the contents of a folder's command, signed as this user's own.

    Args:
        overrides, config_dir: what it is composed from.
        places: of :func:`dtrain.config.tree.places`, with references.
    """
    core, command = {"overrides": overrides, "config_dir": config_dir}, trust.command()
    return {
        **core,
        # Words from elsewhere stay such: consent is for one command.
        "signature": signature(core) if command.typed is None else None,
        "uri_signature": signature({"uri": places}) if command.owns("tracking.uri") else None,
    }


def is_own_address(command: Any, places: Any) -> bool:
    """Say whether this user's own command has put ``places`` into the folder of ``command``."""
    theirs = command.get("uri_signature") if isinstance(command, Mapping) else None
    return places is None or is_own({"uri": places}, theirs)


def _core(command: Any) -> dict[str, Any]:
    values = command if isinstance(command, Mapping) else {}
    return {name: values.get(name) for name in ("overrides", "config_dir")}


def is_own(value: Any, theirs: Any) -> bool:
    """Say whether ``theirs`` is the signature of ``value`` by this user's key."""
    ours = signature(value)
    if not isinstance(theirs, str) or ours is None:
        return False
    return hmac.compare_digest(ours.encode(), theirs.encode(errors="replace"))


def signature(value: Any) -> str | None:
    """Return this user's signature of a JSON value; None where there is no place for a key."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(home) / "dtrain" / "key"
    try:
        if not path.is_file():
            writing.write_key(path, randomness.token_bytes(32))
        key = path.read_bytes()
    except OSError:
        return None
    text = json.dumps(value, sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest() if len(key) == 32 else None


# -- what a caller of the Python API passes: arrays, and functions that he alone has
#
# A function's module is named by the digest of its pickle: where the overrides that name it are the
# user's own, the pickle is, too, and it is trusted for this run alone.


def reserved() -> Path | None:
    """Return the folder that a caller has made for the run, or the sweep, of this command."""
    folder = os.environ.get(RESERVED)
    return Path(folder).absolute() if folder else None


def reserved_in(output_dir: str) -> Path | None:
    """Return :func:`reserved`, which the caller has made in the output folder that he knew of.

    Raises:
        UsageError: an experiment or a preset names another one, where the store would be.
    """
    folder = reserved()
    if folder is not None and not folder.is_relative_to(Path(output_dir).absolute()):
        refuse("output_dir", "is what a file says, and a call from Python has made its folder by "
               "the time that is read", output_dir, accepted="the keyword output_dir",
               hint=f"output_dir={output_dir!r} in the call")  # fmt: skip
    return folder


def is_reserved(path: Path) -> bool:
    """Say whether nothing is in the folder at ``path`` but what a caller has given."""
    return reserved() == path.absolute() and set(os.listdir(path)) <= {FOLDER}


def given_modules(overrides: Iterable[str]) -> list[str]:
    """Return the names of modules from Python that overrides, or other texts, name."""
    return list(dict.fromkeys(name for text in overrides for name in _GIVEN.findall(text)))


def offer_given(run: Path, overrides: Iterable[str], own: bool) -> None:
    """Let the modules that overrides name be loaded from a run folder, if it is the user's own.

    Args:
        run: the folder of a run or a sweep, or a checkpoint of a run.
        overrides: of the command that began it.
        own: its signature is the user's. Nothing of another one is loaded, whoever trusts it.

    Raises:
        DamagedFile: a file was changed since it was given.
        OSError: one cannot be read.
    """
    if run.parent.name == "checkpoints":
        run = run.parent.parent
    for name in given_modules(overrides) if own else ():
        path = pickles.file(run.absolute() / FOLDER, name)
        data = reading.read_bytes(path, pickles.LARGEST) if path.exists() else None
        if data is not None and pickles.name_of(data) != name:
            raise DamagedFile(path, "was changed since it was given")
        pickles.offer([str(path)])


def keep_given(run: Path, overrides: Iterable[str]) -> None:
    """Copy the modules that overrides name into a run folder: they may come from another run.

    Raises:
        OSError: one cannot be written.
    """
    for name in given_modules(overrides):
        target, source = pickles.file(run / FOLDER, name), pickles.find(name)
        if source is None or target.exists():
            continue
        target.parent.mkdir(exist_ok=True)
        data = reading.read_bytes(Path(source), pickles.LARGEST)
        writing.write_bytes(target, data, lasting=True)


# -- variables of the environment


def allowed(name: str) -> bool:
    """Say whether a configuration may read the variable ``name``."""
    consented = (part.strip() for part in os.environ.get(ENV, "").split(","))
    return name.startswith(PREFIX) or name in trust.command().variables or name in consented


def _refusal(key: str, name: str) -> UsageError:
    problem = (
        f"asks for the variable {name} of your environment, which nothing that you typed names"
    )
    accepted = f"variables named by your overrides, by a file of your --config-dir, or by {ENV}"
    hint = f"{ENV}={name} in front of the command, if it may be read and sent on"
    return UsageError(key, problem, f"${{oc.env:{name}}}", accepted=accepted, hint=hint)


def _env(key: str, default: Any = _NO_DEFAULT, *, _node_: Node) -> str | None:
    """Resolve ``${oc.env:KEY}``, as OmegaConf's own resolver does, for what may be read."""
    if key in os.environ:
        if not allowed(key):
            raise _refusal(_node_._get_full_key(None), key)
        value = trust.command().read[key] = os.environ[key]
        return value
    if default is _NO_DEFAULT:
        raise KeyError(f"the environment has no variable {key}")
    return None if default is None else str(default)


# However an interpolation is put together (`${oc.decode:...}`, `${${a}.env:NAME}`), it ends here.
OmegaConf.register_new_resolver("oc.env", _env, replace=True)


def own_error(error: BaseException | None) -> UsageError | None:
    """Return the refusal that an exception of Hydra's or OmegaConf's comes from."""
    while error is not None and not isinstance(error, UsageError):
        error = error.__cause__ or error.__context__  # OmegaConf hides what its resolvers raise
    return error


def check_references(key: str, text: str) -> None:
    """Refuse a ``text`` with a reference to a variable that is not there, or not to be read.

    Raises:
        UsageError: saying how to give it.
    """
    for name, default in _REFERENCE.findall(text):
        if name in os.environ and not allowed(name):
            raise _refusal(key, name)
        if name not in os.environ and not default:
            problem = f"the environment has no variable {name}"
            if name.startswith(PREFIX):
                problem = "it is a secret, which the run folder does not hold"
            refuse(key, problem, text, accepted="the value, given anew",
                   hint=f"{name}=VALUE in front of the command")  # fmt: skip


def variables(text: str) -> set[str]:
    """Return the variables of the environment that a text refers to."""
    return {match[1] for match in _REFERENCE.finditer(text)}


def _secret_variables(key: str, text: str) -> set[str]:
    """Return the variables of ``text`` that are secrets by where they stand."""
    if secrets.named(key):
        return variables(text)
    return set().union(*(variables(text[begin:end]) for begin, end in secrets.passwords(text)))


# -- a configuration, and overrides, as they may be written


def resolve(config: DictConfig) -> None:
    """Resolve everything in ``config``, in place, but what must not be written.

    Raises:
        UsageError: a reference names a variable that the environment lacks, or that the user has
            not named.
    """
    before = {key: (node, name, raw) for key, node, name, raw in _leaves(config)}
    references = {key: raw for key, (_, _, raw) in before.items() if "${" in str(raw)}
    for key, raw in references.items():
        check_references(key, raw)
    read = trust.command().read
    read.clear()
    OmegaConf.resolve(config)
    standing = set().union(*(_secret_variables(key, raw) for key, raw in references.items()))
    secret = {name for name in read if name in standing or secrets.named(name)}
    hidden = {name: value for name, value in read.items() if value and name in secret}
    for key, raw in references.items():
        node, name, _ = before[key]
        # Decoded: a number, or a whole node, of which no part is to be written.
        if hidden.keys() & variables(raw) and not isinstance(node._get_node(name)._value(), str):
            node[name] = raw
    for key, node, name, value in list(_leaves(config)):
        typed = key in before and key not in references
        if isinstance(value, str) and not typed and not key.endswith("_target_"):
            text = _hide(value, hidden, variables(str(references.get(key, ""))))
            if text != value:
                node[name] = value = text  # with a reference
        if "${" in str(value):
            continue
        if secrets.is_secret(value, key):
            node[name] = _move(key, value)
        elif isinstance(value, str):
            for begin, end in reversed(secrets.passwords(value)):
                value = value[:begin] + _move(key, value[begin:end]) + value[end:]
                node[name] = value


def _hide(text: str, hidden: dict[str, str], own: set[str]) -> str:
    """Return a resolved ``text`` with references in the place of secrets.

    Args:
        text: resolved.
        hidden: secrets, by the names of their variables.
        own: those that what was resolved names itself.
    """
    for name, secret in sorted(hidden.items(), key=lambda item: -len(item[1])):
        if name in own or len(secret) >= _SHORTEST:
            text = text.replace(secret, f"${{oc.env:{name}}}")
    return text


def _move(key: str, value: Any) -> str:
    """Put a value into the environment and return the reference to it."""
    name, text = PREFIX + re.sub(r"\W+", "_", key).upper(), str(value)
    while os.environ.get(name, text) != text:  # of another job of this process
        name += "_"
    os.environ[name] = text
    return f"${{oc.env:{name}}}" if isinstance(value, str) else f"${{oc.decode:${{oc.env:{name}}}}}"


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield every scalar: its key, the node and name it stands at, and what is written there."""
    names: Any = node if isinstance(node, DictConfig) else range(len(node))
    for name in names:
        child = node._get_node(name)
        key = f"{prefix}.{name}" if prefix else str(name)
        is_node = isinstance(child, DictConfig | ListConfig)
        if is_node and isinstance(child._value(), dict | list):
            yield from _leaves(child, key)
        else:  # of a node: nothing, or an interpolation
            yield key, node, name, child._value()


def as_written(overrides: list[str], config: DictConfig) -> list[str]:
    """Return the overrides of a command line as they may be written.

    Args:
        overrides: ``key=value`` each.
        config: what they make, after :func:`resolve`.
    """
    moved = {
        key: (node[name], raw)
        for key, node, name, raw in _leaves(config)
        if isinstance(raw, str) and PREFIX in raw
    }
    kept = []
    for override in overrides:
        word = parse(override)
        text = word.value or ""
        for path, (value, reference) in moved.items():
            if path == word.key:
                text = _quoted_as(text, reference)
            elif path.startswith(f"{word.key}.") and text[:1] in ("[", "{"):  # it is in there
                # Quoted with escapes it is not found as it is: it has to be given again.
                text = text.replace(str(value), reference) if str(value) in text else "???"
        if word.value is not None:
            override = str(word._replace(value=_with_values(word.key, text)))
        kept.append(override)
    return kept


def _quoted_as(text: str, reference: str) -> str:
    """Return what has a reference in the place of a secret, in the quotes of what was typed."""
    quote = text[:1]
    if quote not in ("'", '"') or reference.startswith("${"):
        return reference
    return quote + reference.replace(quote, f"\\{quote}") + quote


def _with_values(key: str, text: str) -> str:
    """Put their values in the place of variables that are no secrets: elsewhere they are others."""
    secret = _secret_variables(key, text)

    def replace(match: re.Match[str]) -> str:
        name, value = match[1], os.environ.get(match[1], "")
        keep = name in secret or secrets.named(name) or not _UNQUOTED.fullmatch(value)
        return match[0] if keep else value

    return _SIMPLE.sub(replace, text)
