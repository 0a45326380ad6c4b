"""The command line: one Hydra application."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain import errors, secrets
from dtrain.cli.registry import report
from dtrain.config import command_line, explain, guard, private, project, schema, tree, trust
from dtrain.config.check import settle
from dtrain.config.overrides import of_sources
from dtrain.config.tree import Config
from dtrain.errors import DtrainError, UsageError, refuse
from dtrain.files.fields import Json
from dtrain.host import answer, python_path, terminal
from dtrain.job import debugging, folders, latest, remote, resume, start_times
from dtrain.job.checks import check_address, start
from dtrain.run.outcome import Outcome
from dtrain.sweep.search import Source
from dtrain.sweep.state import arguments
from dtrain.tracking.chosen import describe_overlooked


class Command:
    """Hydra's task function. This class trains; subclasses are the other commands."""

    exit_code = errors.OK
    #: Whether what the project says stands in front of what is typed.
    of_project = True
    #: What the job's configuration raised when it was resolved.
    error: OmegaConfBaseException | None = None

    def __call__(self, config: DictConfig) -> None:
        """Do what the command is for, with the configuration of one job."""
        try:
            self.exit_code = self.job(config)
        except DtrainError as error:  # Hydra would print more than the one sentence
            _print(error, self)
            self.exit_code = error.exit_code
        except OmegaConfBaseException as error:  # likewise, with all overrides
            self.error = error

    def arguments(self, given: list[str]) -> list[str]:
        """Return all overrides of a command line: those of a run that it names are among them.

        Args:
            given: as it was typed.

        Raises:
            UsageError: it names a folder that is none of a run.
        """
        given = latest.resolved(given, latest.KEYS)
        given = remote.arguments(given, ("resume", "fork", "sweep.resume"))
        return resume.arguments(arguments(given))

    def worded(self, text: str) -> str:
        """Return a message with the keys as they are typed in this command."""
        return text

    def job(self, node: DictConfig) -> int:
        """Run one job, and return the exit code."""
        return exit_code_of(_job(node))

    def sweep(self, loader: Any, master: DictConfig, source: Source) -> None:
        """Run many (``hydra_plugins.dtrain_sweep``)."""
        # Imported now: with it come the launchers that have sweeps of their own.
        from dtrain.sweep import command
        from dtrain.sweep.compose import Master

        self.exit_code = command.run(Master(loader, master), source)


class OneConfiguration(Command):
    """A command that takes no sweep."""

    #: Of the command.
    name: str

    def sweep(self, loader: Any, master: DictConfig, source: Source) -> None:
        """Refuse a sweep."""
        refuse("hydra.mode", f"{self.name} has one configuration", "MULTIRUN",
               hint="a command for each value")  # fmt: skip


def exit_code_of(outcome: Outcome) -> int:
    """Return the exit code of a job; its error is left for whoever has called the command."""
    if outcome.failure is not None:
        answer.note(error=outcome.failure.sentence(outcome.folder))
    return outcome.exit_code


def main() -> int:
    """Compose the configuration and run its job, or the jobs of a sweep.

    Returns:
        The exit code.
    """
    start_times.ended("imports")
    try:
        return composed(sys.argv[1:], Command())
    except KeyboardInterrupt:
        return terminal.stopped(sys.argv[1:])


def composed(words: list[str], command: Command) -> int:
    """Compose the configuration of a command line, and have ``command`` do something with it.

    A command may compose for another one: its own words, and what they consent to, stay.

    Args:
        words: overrides, and options of Hydra's. Until it has ended ``sys.argv`` is what they stand
            for: those of the run that is resumed are among them.
        command: what is done.

    Returns:
        The exit code; what is wrong is printed.
    """
    typed, granted = sys.argv[1:], python_path.granted.get()
    try:
        return _composed(words, command)
    finally:
        sys.argv[1:] = typed
        python_path.granted.set(granted)


def _composed(words: list[str], command: Command) -> int:
    schema.register()
    # Hydra then lets exceptions through, for us to explain, instead of printing and exiting 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    words = [schema.option_as_text(override) for override in words]
    sys.argv[1:] = words
    try:
        if command.of_project:
            words = project.words(words)
        trust.begin(words, project.typed_config_dir(words))
        for note in command_line.notes(words):
            print(note, file=sys.stderr)
        sys.argv[1:] = command.arguments(words)
        explain.check(sys.argv[1:])
        guard.run(sys.argv[1:], command)
        if command.error is not None:
            raise command.error
    except UsageError as error:
        _print(error, command)
        return error.exit_code
    except (HydraException, OmegaConfBaseException) as error:
        explained = private.own_error(error) or explain.explain(error, sys.argv[1:])
        for note in getattr(error, "__notes__", ()):
            explained.add_note(note)
        _print(explained, command)
        return errors.USAGE
    except RecursionError:
        answer.error("a value of the command is nested too deep")
        return errors.USAGE
    except MemoryError as error:
        text = str(error) or "it ended while the data was looked at"
        answer.error(f"this machine has not the memory for it: {text}")
        return errors.USAGE
    except OSError as error:  # which some of Hydra's are, too
        if error.filename is None and errors.of_a_name(error) is None:
            raise
        return report(error, error.filename)
    return command.exit_code


def _job(node: DictConfig) -> Outcome:
    start_times.ended("compose")
    settings = HydraConfig.get()
    # As they were typed: a reference to the environment is no value yet.
    overrides: Any = OmegaConf.to_container(settings.overrides.task, resolve=False)
    config = settle(node)
    check_address(config)
    if config.action.get("run", "") is None:  # of an action on a run, which its command names
        chosen = settings.runtime.choices.get("action")
        refuse("action", "works on what a run has left", chosen, accepted="train",
               hint=f"python -m dtrain {chosen} outputs/DATE/TIME_NAME")  # fmt: skip
    folders.check_name(config.name)
    if (message := describe_overlooked(config)) is not None:
        print(f"note: {message}", file=sys.stderr)
    path, chosen = guard.run_folder(config.output_dir)
    folder = folders.place(path, "hydra.run.dir")
    if config.resume == resume.AUTO:
        words = command_of(config, node)
        config.resume = remote.find(config, words, folder if chosen else None)
        run = config.resume or "no unfinished run of this command: a new one begins"
        print(f"resume=auto: {run}", file=sys.stderr)
        if config.resume is not None:  # a stop before it begins ends as with that override
            sys.argv[1:] = [
                f"resume={config.resume}" if w == f"resume={resume.AUTO}" else w
                for w in sys.argv[1:]
            ]
    command = command_of(config, node)
    if config.resume is not None:
        resume.check(config, overrides)
        config.resume = str(Path(config.resume).absolute())
        if chosen and folder != Path(config.resume):
            refuse("hydra.run.dir", "a run that is resumed stays in its folder", path,
                   typed=f"hydra.run.dir={config.resume}")  # fmt: skip
        sentence = None if config.dry_run or config.debug else resume.nothing_to_do(config)
        if sentence is not None:
            print(sentence, file=sys.stderr)
            return Outcome(errors.OK, status="FINISHED")
    elif config.fork is not None:
        resume.pin(config)
    if config.debug is not None:
        return debugging.run(config, settings.runtime.choices["debug"], folder, command, chosen)
    return start(config, folder, command, chosen)


def command_of(config: Config, node: DictConfig) -> Json:
    """Return the contents of ``command.json`` of the command whose configuration Hydra has now.

    Args:
        config: settled.
        node: as Hydra has composed it.
    """
    settings = HydraConfig.get()
    # As they were typed: a reference to the environment is no value yet.
    overrides: Any = OmegaConf.to_container(settings.overrides, resolve=False)
    words = [*of_sources(overrides["hydra"]), *overrides["task"]]
    sources = {source.provider: source.path for source in settings.runtime.config_sources}
    return resume.command(
        private.as_written(words, node),
        sources.get("command-line"), tree.places(config),
    )  # fmt: skip


def _print(error: Exception, command: Command) -> None:
    key = error.key if isinstance(error, UsageError) else None
    texts = (str(error), *getattr(error, "__notes__", ()), project.note(key) if key else None)
    shown = [errors.readable(secrets.mask(command.worded(text))) for text in filter(None, texts)]
    answer.error("\n".join(shown), key)
