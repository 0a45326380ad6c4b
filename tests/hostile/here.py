"""The current directory as an attacker left it: modules, packages and settings that lie there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

from tests.hostile.harness import Case, Place

_FRESH = ("fresh dry", "fresh compare", "fresh sync", "fresh checkpoint", "fresh ui", "fresh new")
_PACKAGES = (
    "keras", "hydra", "numpy", "yaml", "omegaconf", "mlflow", "tensorflow", "safetensors",
    "ml_dtypes", "pandas", "sklearn", "matplotlib", "antlr4", "rich", "sqlalchemy", "optuna",
    "google", "requests", "scipy", "alembic", "flask", "packaging", "typing_extensions",
)  # fmt: skip
_STANDARD = ("json", "dataclasses", "pathlib", "argparse", "logging", "socket", "tempfile",
             "importlib_metadata", "sitecustomize", "usercustomize", "pickle", "csv",
             "hashlib", "uuid", "sqlite3")  # fmt: skip


def _marks(place: Place, name: str) -> str:
    return f"open({str(place.canary / 'ran')!r} + '-{name}', 'w').close()\n"


def _shadows(*names: str) -> Callable[[Place], None]:
    """Leave packages of these names, each of which leaves a mark when it is imported."""

    def build(place: Place) -> None:
        for name in names:
            (place.work / name).mkdir()
            (place.work / name / "__init__.py").write_text(_marks(place, name))

    return build


def _plugin(place: Place) -> None:
    """A package of Hydra's plugins: Hydra imports whatever is in one."""
    folder = place.work / "hydra_plugins"
    folder.mkdir()
    (folder / "evil.py").write_text(_marks(place, "plugin"))
    (folder / "evil_package").mkdir()
    (folder / "evil_package" / "__init__.py").write_text(_marks(place, "plugin"))


def _entry_points(place: Place) -> None:
    """What says that it was installed: packages with plugins are asked for them by name."""
    folder = place.work / "evil-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    groups = (
        "mlflow.tracking_store", "mlflow.artifact_repository", "mlflow.run_context_provider",
        "mlflow.request_header_provider", "mlflow.request_auth_provider",
        "mlflow.default_experiment_provider", "mlflow.model_registry_store",
        "mlflow.deployments", "mlflow.app", "sqlalchemy.dialects", "sqlalchemy.plugins",
        "matplotlib.backend", "opentelemetry_context", "opentelemetry_environment_variables",
    )  # fmt: skip
    text = "".join(f"[{group}]\nsqlite = evil_plugin:x\nevil = evil_plugin:x\n" for group in groups)
    (folder / "entry_points.txt").write_text(text)
    (place.work / "evil_plugin.py").write_text(_marks(place, "entry-point") + "x = None\n")


def _versions(place: Place) -> None:
    """Other versions of what is installed, by their metadata alone."""
    for name in ("dtrain", "tensorflow", "keras", "mlflow", "numpy"):
        folder = place.work / f"{name}-99.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: \x1b[31m\n"
        )


def _git(place: Place) -> None:
    """A repository whose settings name a command that git runs when it is asked what is new."""
    subprocess.run(["git", "init", "-q", place.work], check=True, capture_output=True)
    for key in ("core.fsmonitor", "core.hooksPath", "filter.x.clean", "core.pager"):
        value = f"touch {place.canary}/ran-git; false" if key != "core.hooksPath" else "hooks"
        subprocess.run(["git", "-C", place.work, "config", key, value], check=True)
    (place.work / ".gitattributes").write_text("* filter=x\n")
    (place.work / "hooks").mkdir()
    hook = place.work / "hooks" / "post-index-change"
    hook.write_text(f"#!/bin/sh\ntouch {place.canary}/ran-hook\n")
    hook.chmod(0o755)


def _matplotlib(place: Place) -> None:
    (place.work / "matplotlibrc").write_text(
        "backend: module://evil_backend\nsavefig.directory: /\nsvg.fonttype: path\n"
        "text.usetex: True\n"
    )
    (place.work / "evil_backend.py").write_text(_marks(place, "backend"))


def _settings(place: Place) -> None:
    """Files that libraries read where they find them."""
    for name in (
        ".env",
        "setup.cfg",
        "pyproject.toml",
        "alembic.ini",
        "logging.conf",
        ".mlflow",
        "MLproject",
        "conda.yaml",
        ".hydra",
        "config.yaml",
        "conf.yaml",
    ):
        (place.work / name).write_text("[alembic]\nDTRAIN_TRUST=os\n")
    (place.work / "conf").mkdir()
    (place.work / "conf" / "config.yaml").write_text(
        f"hydra: {{callbacks: {{x: {{_target_: os.system, command: touch {place.canary}/ran}}}}}}\n"
    )
    (place.work / "experiments").mkdir()
    (place.work / "experiments" / "long.yaml").write_text("hydra: {callbacks: {x: {}}}\n")


def _commands(place: Place) -> None:
    """Programs of the current directory, in the place of those of the machine."""
    for name in ("git", "nvidia-smi", "uname", "ldconfig", "gcc", "sh"):
        path = place.work / name
        path.write_text(f"#!/bin/sh\ntouch {place.canary}/ran-{name}\n")
        path.chmod(0o755)


def _gone(place: Place) -> None:
    """Nothing is wrong but that the outputs are another user's folder."""
    for path in (place.outputs / "2026-01-02").iterdir():
        os.chmod(path, 0o777)


CASES = [
    Case("packages of the names of ours", _shadows(*_PACKAGES), _FRESH, (0,),
         exits={"fresh ui": (2,)}),
    Case("modules of the names of the standard library", _shadows(*_STANDARD), _FRESH, (0,),
         exits={"fresh ui": (2,)}),
    Case("a package of Hydra's plugins", _plugin, _FRESH, (0,), exits={"fresh ui": (2,)}),
    Case("entry points that lie here", _entry_points, ("fresh sync", *_FRESH[:2]), (0,)),
    Case("versions that lie here", _versions, ("fresh sync", "fresh new"), (0,)),
    Case("settings of git that run a command", _git, ("sync finished", "resume"), (0,),
         skip=None if shutil.which("git") else "git is not installed"),
    Case("settings of matplotlib", _matplotlib, ("fresh compare",), (0,)),
    Case("settings of other libraries", _settings, ("fresh dry", "fresh sync", "new"), (0,)),
    Case("programs that lie here", _commands, ("sync finished", "new", "compare finished"), (0,)),
    Case("outputs that anybody may write", _gone, ("resume", "compare", "sync"), (0,)),
]  # fmt: skip
