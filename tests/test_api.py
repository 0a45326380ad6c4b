"""The Python API: what it gives to a run, which command it makes of a call, what comes back."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import linecache
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import dtrain
from dtrain.__main__ import main
from dtrain.api import command, keywords, local_model, objects, training
from dtrain.api.command import Done, Line
from dtrain.api.objects import Objects, Trust
from dtrain.compare import bits
from dtrain.compare.load import public
from dtrain.config import private, trust
from dtrain.errors import DamagedFile, TrainingError, UsageError
from dtrain.host import answer, pickles, python_path
from dtrain.launchers import facts
from dtrain.run.folder import FORMAT, RunDir
from tests.conftest import Commands
from tests.test_encoding import customers

SCRIPT = """
import functools
import numpy as np
from numpy import linalg as algebra
import dtrain

WIDTH = 16
array = np.zeros(3)


def width():
    return WIDTH


class Doubled:
    def __init__(self, array):  # another than the one above
        self.array = array * 2


def build(input_shape, classes):
    import keras

    assert algebra.norm(Doubled(np.ones(1)).array) == 2
    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(width()),
                             keras.layers.Dense(classes, activation="softmax")])


def closed():
    n = WIDTH

    def inner(x):
        return x * n
    return inner


def unwritable():
    return array


inner = closed()


@functools.cache
def kept():
    return [WIDTH]


def planted(input_shape, classes):
    import keras

    class Late(keras.layers.Layer):
        def build(self, shape):
            self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.steps.assign_add(1.0)
            return x / keras.ops.where(self.steps > 3.0, 0.0, 1.0)

    return keras.Sequential([keras.Input(input_shape), Late(name="late"),
                             keras.layers.Dense(classes, activation="softmax")])


def dead(input_shape, classes):
    import keras

    class Stop(keras.layers.Layer):
        def call(self, x):
            return keras.ops.stop_gradient(x)

    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(classes), Stop(),
                             keras.layers.Softmax()])


def wrong(input_shape, classes):
    import keras

    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense("many")])
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[types.SimpleNamespace]:
    """What a script defines that runs as ``__main__``."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    before = sys.modules["__main__"]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        exec(compile(SCRIPT, str(path), "exec", dont_inherit=True), vars(module))
        yield types.SimpleNamespace(**vars(module))
    finally:
        sys.modules["__main__"] = before
        linecache.clearcache()


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing trusted that a test has given."""
    for name in (python_path.TRUST, pickles.FILES, python_path.RESERVED):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def here(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], variables: None
) -> Any:
    """Run commands in this process, whose tasks are forked from the warm server."""

    def call(
        arguments: list[str], line: Any, trust: Any = None, *, reserved: Any = None,
        follow: Any = None,
    ) -> Done:  # fmt: skip
        changes = command._environment(trust or Trust(), reserved)
        with pytest.MonkeyPatch.context() as patch:
            for name in (python_path.TRUST, pickles.FILES, python_path.RESERVED):
                patch.setenv(name, changes.get(name, ""))
            patch.setattr(sys, "argv", ["dtrain", *arguments])
            capfd.readouterr()
            with answer.asked() as left:
                code = main()
            captured = capfd.readouterr()
        return Done(code, left, (captured.out + captured.err).splitlines()[-5:])

    monkeypatch.setattr(command, "call", call)
    return call


def test_importing_it_imports_no_library() -> None:
    code = (
        "import sys, threading; import dtrain; assert threading.active_count() == 1; "
        "print(*{each.partition('.')[0] for each in sys.modules}); dtrain.train; "
        "print(*{each.partition('.')[0] for each in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, then = (set(line.split()) for line in done.stdout.splitlines())
    heavy = {"tensorflow", "keras", "hydra", "mlflow", "omegaconf", "rich", "pandas", "numpy"}
    assert not heavy & first
    assert heavy & then == {"numpy"}


def test_a_task_imports_cloudpickle_where_something_was_pickled() -> None:
    modules = (
        "dtrain.host.python_path, dtrain.config.private, dtrain.config.trust, dtrain.run.folder"
    )
    code = f"import sys, {modules}; assert 'cloudpickle' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_has_the_name_of_a_package_that_can_be_called() -> None:
    import dtrain.compare
    import dtrain.sweep

    assert {"train", "sweep", "compare", "Run"} <= set(dir(dtrain))
    assert "overrides" in inspect.signature(dtrain.sweep).parameters
    with pytest.raises(UsageError, match="nonsense"):
        dtrain.sweep(nonsense=1)
    with pytest.raises(UsageError, match="runs"):
        dtrain.compare([])
    with pytest.raises(AttributeError, match="trian"):
        dtrain.trian  # noqa: B018


class Batches:
    """Has the form of a ``keras.utils.PyDataset``: rows of different shapes, in NumPy's eyes."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        if index > 1:
            raise IndexError
        return np.zeros((3, 2)), np.zeros(3)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"epoch": 3}, "epoch=3: is no keyword of dtrain.train.*epochs=..."),
        ({"overrides": ["--help"]}, "--help: is no override"),
        ({"overrides": ["resume=x"]}, "resume=x: is what the call itself says"),
        ({"output_dir": "s3://bucket/x"}, "type: output_dir=outputs"),
        ({"epochs": object()}, "epochs=.*no value of a configuration"),
        ({"model": 3}, "model=int 3: is no function or class"),
        ({"data": (["a", "b"], [1, 2])}, "data .x.=.*is no array of numbers"),
        ({"data": np.zeros(3), "validation": (np.zeros(3), np.zeros(3))}, "has not the 1 parts"),
        ({"validation": (np.zeros(3),)}, "stands beside arrays alone"),
        ({"data": np.array([1, None])}, r"object: is no array.*x.astype\('float32'\)"),
        ({"data": [([1], 2)] * 4}, r"4 parts: are not x, \(x, y\).*numpy.asarray\(x\)"),
        ({"data": {"a.b": np.ones(3), "a": {"b": np.zeros(3)}}}, "x.a.b: is what two arrays are"),
        ({"data": Batches()}, "Batches: is read in this process.*data=load"),
        ({"learning_rate": np.array([0.1, 0.01])}, r"learning_rate=VALUES.tolist\(\)"),
        ({"callbacks": functools.partial(dict, show=len)}, r"return KIND\(NAME=len\), and make"),
    ],
)
def test_a_wrong_call_is_refused(given: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        dtrain.train(**given, show=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value",
    [1, 1e-5, True, None, "cnn", "", "null", "it's", "a b", "a\\", "\\'", "x,y", "[1]", "{a:1}",
     "k=v", "käuft", [1, "b c"], {"a": [1, {"b": "d'"}]}],
)  # fmt: skip
def test_values_are_written_as_hydra_reads_them(value: Any) -> None:
    text = f"key={keywords.write_value(value, 'key')}"
    assert OverridesParser.create().parse_override(text).value() == value


def test_keywords_are_short_words_for_keys() -> None:
    words = keywords.words_of({"epochs": 3, "learning_rate": [1e-3, 0.01]}, "sweep", swept=True)
    assert words == ["trainer.epochs=3", "optimizer.learning_rate=0.001,0.01"]
    home = keywords.words_of({"output_dir": "~/runs"}, "train")
    assert keywords.place(home) == os.path.expanduser("~/runs")  # no shell has seen it


@pytest.mark.parametrize(
    ("overrides", "place"),
    [([], "outputs"), (["output_dir='a b'"], "a b"), (["debug=none"], "outputs"),
     (["debug=nan"], "outputs/debug"), (["debug=nan", "output_dir=mine"], "mine/debug")],
)  # fmt: skip
def test_checks_have_a_place_of_their_own(overrides: list[str], place: str) -> None:
    assert keywords.place(overrides) == place


def test_arrays_become_a_file_of_rows(tmp_path: Path) -> None:
    folder = tmp_path / python_path.FOLDER
    x = {"image": np.zeros((4, 2)), "more": (np.ones(4), np.ones(4))}
    found = objects.array_overrides(folder, (x, np.arange(4)), (x, np.arange(4)))
    assert "dataset.inputs={image:x.image,more:[x.more.0,x.more.1]}" in found
    assert "dataset.validation_target=validation_y" in found
    assert "dataset.weight=null" in found
    [path] = folder.iterdir()
    assert {"x.image", "x.more.1", "y", "validation_x.image"} <= set(np.load(path))
    again = objects.array_overrides(folder, (x, np.arange(4)), (x, np.arange(4)))
    assert again == found  # and so the same arrays are no difference between runs
    assert public({"path": str(path)}) == {"path": f"given/{path.name}"}
    assert public({"model": f"given_{'0a' * 16}.wide"}) == {"model": "given_0a0a0a0a.wide"}


def loaded(folder: Path, target: str) -> Any:
    """Return what a task finds by a name that was given."""
    module, _, name = target.partition(".")
    pickles.offer([str(pickles.file(folder, module))])
    python_path.offer()
    return getattr(importlib.import_module(module), name)


def test_what_a_script_defines_travels_with_what_it_uses(
    script: types.SimpleNamespace, tmp_path: Path, variables: None
) -> None:
    target = Objects(tmp_path).target(script.build, "model")
    assert Objects(tmp_path).target(script.build, "model") == target
    [path] = tmp_path.glob("*.pickle")
    assert b"unwritable" not in path.read_bytes(), "it has no more than what build uses"
    for name in ("width", "Doubled", "build"):
        del vars(sys.modules["__main__"])[name]
    build = loaded(tmp_path, target)
    space = sys.modules[build.__module__]
    assert space.width() == 16
    assert space.Doubled.__module__ == build.__module__ == build.__globals__["__name__"]
    # A closure, what has a cache (which is by itself pickled by its name in __main__), a lambda.
    assert loaded(tmp_path, Objects(tmp_path).target(script.inner, "loss"))(2) == 32
    kept = loaded(tmp_path, Objects(tmp_path).target(script.kept, "data"))
    assert kept() == [16] and kept() is kept()
    assert loaded(tmp_path, Objects(tmp_path).target(lambda: 3, "data"))() == 3


def test_it_is_the_same_file_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        SCRIPT + "from pathlib import Path; from dtrain.api.objects import Objects\n"
        "print(Objects(Path()).target(Doubled, 'model'), Objects(Path()).target(build, 'model'))"
    )
    command = [sys.executable, "script.py"]
    root = str(Path(dtrain.__file__).parents[1])
    said = {
        subprocess.run(
            command, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


def test_its_text_is_that_of_the_caller_whatever_is_in_the_file_now(
    script: types.SimpleNamespace, tmp_path: Path, variables: None
) -> None:
    target = Objects(tmp_path / "one").target(script.build, "model")
    (tmp_path / "script.py").write_text("\n\n" + SCRIPT.replace("return WIDTH", "return 1"))
    linecache.clearcache()
    build = loaded(tmp_path / "one", target)
    width = sys.modules[build.__module__].width
    assert inspect.getsource(width) == "def width():\n    return WIDTH\n"
    linecache.clearcache()  # and where the caller's own file has changed, it has none
    width = loaded(tmp_path / "two", Objects(tmp_path / "two").target(script.width, "data"))
    with pytest.raises(OSError, match="could not get source code"):
        inspect.getsource(width)


def test_a_cell_has_the_name_that_ipython_shows(
    script: types.SimpleNamespace, tmp_path: Path, variables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ipython: Any = types.ModuleType("IPython")
    compiles = types.SimpleNamespace(format_code_name=lambda name: ("Cell", "In[3]"))
    ipython.get_ipython = lambda: types.SimpleNamespace(compile=compiles)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    build = loaded(tmp_path, Objects(tmp_path).target(script.build, "model"))
    assert build.__code__.co_filename == "Cell In[3]"
    assert "units=width()" not in inspect.getsource(build)
    assert inspect.getsource(build).startswith("def build(input_shape, classes):")


def test_what_cannot_be_pickled_is_named(
    script: types.SimpleNamespace, tmp_path: Path, variables: None
) -> None:
    held, opened = threading.Lock(), open(__file__)  # noqa: SIM115 # closed below
    rows = (row for row in "ab")

    def locked() -> Any:
        return held

    def inner() -> Any:
        return opened.read()

    def around() -> Any:
        return inner()

    def drawn() -> Any:
        return [next(rows) for _ in range(2)]

    large = np.zeros(2_000_000)
    with opened:
        for function, problem in [
            (locked, "held, which locked uses: cannot pickle '_thread.lock' object"),
            (around, "opened, which inner uses: the open file '.*test_api.py'"),
            (drawn, "rows, which drawn uses: cannot pickle 'generator' object"),
            (lambda: large, r"takes 16,000,\d+ bytes with all that it uses; .* hint: data=\(x, y"),
        ]:
            with pytest.raises(UsageError, match=problem):
                dtrain.train(model=function, show=False)
    assert not list(tmp_path.glob("outputs/*/*"))


def test_one_callback_is_a_list_of_one(tmp_path: Path) -> None:
    given: dict[str, Any] = dict.fromkeys(training.OBJECTS)
    for callbacks in (Batches, [Batches], (Batches,)):
        [text] = training.Call(tmp_path, show=False).overrides(
            {**given, "callbacks": callbacks}, []
        )
        assert text == "trainer.callbacks=[{_target_:tests.test_api.Batches}]"


def test_a_module_that_a_pickle_imports_is_found_and_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: None
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "neighbour.py").write_text("width = 2\n")
    monkeypatch.syspath_prepend(tmp_path / "more")
    neighbour = importlib.import_module("neighbour")
    objects = Objects(tmp_path / python_path.FOLDER)
    objects.target(lambda: neighbour.width, "model")
    assert objects.trust.names == ["neighbour"]
    assert objects.trust.paths == [str(tmp_path / "more")]
    pickles.offer(objects.trust.files)
    [name] = private.given_modules(objects.trust.files)
    assert pickles.read(name)[0]["imports"] == ["neighbour"]


def test_a_file_is_what_its_name_says(tmp_path: Path, variables: None) -> None:
    target = Objects(tmp_path / python_path.FOLDER).target(lambda: 1, "model")
    name, overrides = target.partition(".")[0], [f"model._target_={target}"]
    private.offer_given(tmp_path, overrides, own=False)
    assert pickles.find(name) is None
    private.offer_given(tmp_path, overrides, own=True)
    assert trust.is_trusted(target)
    [path] = (tmp_path / python_path.FOLDER).iterdir()
    assert pickles.find(name) == str(path)
    assert facts.own()[pickles.FILES] == str(path), "a host that shares the disk finds it, too"
    python_path.offer()
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"imports"', b'"imported"'))
    with pytest.raises(ImportError, match="was changed since"):
        importlib.import_module(name)
    with pytest.raises(DamagedFile, match="was changed since it was given"):
        private.offer_given(tmp_path, overrides, own=True)
    path.unlink()
    with pytest.raises(UsageError, match=r"_target_=given_.*/given/given_\w+.pickle is not there"):
        trust.check({"model": {"_target_": target}})


def test_another_python_does_not_load_it(
    tmp_path: Path, variables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Objects(tmp_path / python_path.FOLDER).target(lambda: 1, "model")
    private.offer_given(tmp_path, [target], own=True)
    monkeypatch.setattr(pickles, "PYTHON", "3.99")
    with pytest.raises(UsageError, match=r"passed from Python 3\.\d+, whose .* Python 3.99 cannot"):
        trust.check({"model": {"_target_": target}})
    python_path.offer()
    with pytest.raises(ImportError, match=r"this Python 3.99 cannot run"):
        importlib.import_module(target.partition(".")[0])


def examples() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 4, size=128)
    return (np.eye(4)[y] + generator.normal(0, 0.1, (128, 4))).astype("float32"), y


QUICK = {"batch_size": 32, "tracking": "none", "show": False}


class Stream:
    """As a notebook has it in the place of standard output."""

    __module__ = "ipykernel.iostream"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


class Outputs(types.ModuleType):
    """As ``IPython.display``: what is displayed, and what an output is updated to."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.drawn: list[str] = []

    def display(self, data: dict[str, str], **options: bool) -> Any:
        assert options == {"raw": True, "display_id": True}
        self.drawn.append("new")
        self.update(data, raw=True)
        return self

    def update(self, data: dict[str, str], raw: bool) -> None:
        self.drawn.append(data["text/plain"])


REPORT = {"epoch": 1, "epochs": 2, "step": 3, "total_steps": 9, "loss": 0.5,
          "examples_per_second": 1000.0, "metrics": {"val_loss": 0.25}}  # fmt: skip
SHOWN = "epoch 1/2  step 3/9  loss 0.5000  1,000 examples/s"


def test_a_notebook_has_one_output_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, outputs = Stream(), Outputs()
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", outputs)
    monkeypatch.setattr(sys, "stdout", stream)
    for show in (False, True):
        line = Line(show)
        line.message("starting")
        for step in (3, 3, 4):
            line.update({**REPORT, "step": step})
        line.message("FINISHED")
        line.close()
    assert outputs.drawn == ["new", SHOWN, SHOWN.replace("3/9", "4/9"), ""]
    assert stream.text == "starting\nFINISHED\n"


def test_a_terminal_has_one_line_that_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    monkeypatch.setattr(Stream, "__module__", __name__)
    monkeypatch.setattr(Stream, "isatty", lambda self: True)
    monkeypatch.setattr(sys, "stdout", stream)
    line = Line()
    line.update(REPORT)
    assert stream.text == f"\r{SHOWN}"
    line.message("FINISHED")
    assert stream.text.endswith(f"\r{' ' * len(SHOWN)}\rFINISHED\n")


def test_progress_of_an_earlier_command_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Recorded(Line):
        def update(self, report: dict[str, Any] | None) -> None:
            raise AssertionError(report)

    report = {**REPORT, "time": 1.0}
    (tmp_path / "progress.json").write_text(json.dumps(report))
    assert command._progress(RunDir(tmp_path)) == report
    monkeypatch.setattr(command, "_TURN", 0.001)
    done = command.call(["--version"], Recorded(show=False), follow=tmp_path)
    assert (done.code, done.printed[0]) == (0, f"dtrain {dtrain.__version__}")


def test_a_notebook_shows_where_its_own_code_is_and_the_sentence() -> None:
    with pytest.raises(UsageError, match="epoch=3") as caught:
        dtrain.train(epoch=3)
    caught.value.__cause__ = ValueError("what the sentence is made of")
    shown = caught.value._render_traceback_()
    assert shown[0] == "Traceback (most recent call last):"
    assert [__file__ in line for line in shown if "  File " in line] == [True]
    assert shown[-1].startswith("dtrain.errors.UsageError: epoch=3: is no keyword")
    assert "what the sentence" not in "".join(shown)


def test_a_run_from_python_is_one_that_the_command_line_resumes(
    script: types.SimpleNamespace, here: Callable[..., Done], dtrain: Commands
) -> None:
    import dtrain as api

    run = api.train(model=script.build, data=examples(), epochs=1, seed=3, **QUICK)
    assert run.status == "FINISHED"
    assert run.path.name.endswith("_build_default")
    assert run.metrics["loss"] is not None
    assert run.history[-1]["epoch"] == 1
    # The words of another user's folder are not trusted: the user's own are, by their signature.
    resumed = dtrain(f"resume={run.path}", "trainer.epochs=2")
    assert resumed.code == 0, resumed.output
    assert run.history[-1]["epoch"] == 2
    whole = api.train(model=script.build, data=examples(), epochs=2, seed=3, **QUICK)
    assert bits.report(RunDir(run.path), RunDir(whole.path))[1], "no bit depends on the resume"
    text = (run.path / "command.json").read_text()
    other = run.fork(epochs=3, learning_rate=1e-4, show=False)
    assert other.path != run.path
    assert list((other.path / python_path.FOLDER).glob("given_*.pickle"))
    before = dict(os.environ)
    with local_model._variables(RunDir(run.path), {"KERAS_BACKEND": "jax"}, Trust(["mine"])):
        assert "mine" in python_path.trusted() and pickles.find(private.given_modules([text])[0])
    assert os.environ == before, "what loads a model trusts its code, and the caller does not"
    (run.path / "command.json").write_text(text.replace("seed=3", "seed=4"))
    trust.begin([], None)
    os.environ.pop(pickles.FILES, None)
    [name] = private.given_modules([text])  # which nobody can trust by its name
    os.environ[python_path.TRUST] = name
    refused = dtrain(f"resume={run.path}")
    assert "was passed from Python to a run that your key has not signed" in refused.output


def test_an_error_of_the_users_code_has_its_place(
    script: types.SimpleNamespace, here: Callable[..., Done]
) -> None:
    line = SCRIPT.splitlines().index(next(t for t in SCRIPT.splitlines() if '"many"' in t)) + 1
    x, y = examples()
    with pytest.raises(TrainingError) as caught:
        dtrain.train(model=script.wrong, data=(x, y / 3), epochs=1, **QUICK)
    text = str(caught.value)
    assert "Received: units=many; " in text
    assert f"script.py, line {line}, in wrong)" in text
    assert "classes is None, as the dataset has targets that are no class labels (float32" in text


def test_a_run_is_evaluated_on_data_that_lacks_a_class(
    script: types.SimpleNamespace, here: Callable[..., Done]
) -> None:
    x, y = examples()
    run = dtrain.train(model=script.build, data=(x, y), epochs=1, **QUICK)
    found = dtrain.evaluate(str(run.path), data=(x[y < 2], y[y < 2]), show=False)
    assert 0 < found["loss"] < 10


@pytest.mark.faults
def test_data_that_a_run_cannot_be_evaluated_on(
    script: types.SimpleNamespace, here: Callable[..., Done]
) -> None:
    x, y = examples()
    run = dtrain.train(model=script.build, data=(x, y), epochs=1, **QUICK)
    for data, problem in [
        ((x, y + 2), "label 5: is none of the 4 classes of the model; accepted: labels from 0"),
        (({"a": x}, y), "inputs: has no x"),
        ((x[:, :3], y), r"inputs: has float \[3\] as x instead of float \[4\]"),
        (x, "targets: has no y"),
        ((x, y + 0.5), "targets: has float as y instead of int"),
    ]:
        with pytest.raises(UsageError, match=problem):
            dtrain.evaluate(run, data=data, show=False)


@pytest.mark.faults
def test_a_check_in_the_place_of_a_training(
    script: types.SimpleNamespace, here: Callable[..., Done], tmp_path: Path
) -> None:
    given = {"data": examples(), "epochs": 2, **QUICK}
    with pytest.raises(TrainingError) as caught:
        dtrain.train(model=script.planted, debug="nan", **given)
    assert "layer late (Late) computes a value that is not finite" in str(caught.value)
    assert "at step 4" in str(caught.value)
    folder = caught.value.folder  # type: ignore[attr-defined]
    assert folder.is_relative_to(tmp_path / "outputs" / "debug")
    debug = dtrain.Run(folder).result["debug"]
    assert (debug["step"], debug["kind"]) == (4, "value")
    with pytest.raises(TrainingError, match="No gradients provided for any variable"):
        dtrain.train(model=script.dead, debug="overfit", **given)
    with pytest.raises(UsageError, match=r"debug=overfitt: .*type: debug=overfit"):
        dtrain.train(model=script.build, debug="overfitt", **given)


def test_what_is_imported_is_trusted_for_its_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: None
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "imported.py").write_text("def build():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    asked: list[dict[str, Any]] = []

    def call(arguments: list[str], line: Any, trust: Trust, **options: Any) -> Done:
        asked.append({"arguments": arguments, "trust": trust})
        if "reserved" in options:
            (options["reserved"] / "command.json").write_text(f'{{"format": {FORMAT}}}')
        return Done(0, {})

    monkeypatch.setattr(command, "call", call)
    run = dtrain.train(model=__import__("imported").build)
    run.resume(epochs=2)
    run.fork(epochs=3)
    (run.path / "checkpoints" / "3").mkdir(parents=True)
    dtrain.Run(run.path).fork(checkpoint=3).resume()
    assert "model._target_=imported.build" in asked[0]["arguments"]
    for each in asked:
        assert each["trust"] == Trust(["imported"], [str(tmp_path / "elsewhere")])


def test_a_refused_run_leaves_nothing(here: Callable[..., Done], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"trainer\.epochs=0") as caught:
        dtrain.train(data=examples(), epochs=0, **QUICK)
    assert caught.value.key == "trainer.epochs"
    assert not (tmp_path / "outputs").exists()


def test_an_experiment_does_not_part_a_run_from_its_store(
    here: Callable[..., Done], tmp_path: Path
) -> None:
    preset = tmp_path / "presets" / "experiment" / "mine.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\noutput_dir: elsewhere\n")
    for begin, rates in ((dtrain.train, 0.1), (dtrain.sweep, [0.1, 0.2])):
        with pytest.raises(UsageError, match=r"output_dir=.*elsewhere: .*in the call"):
            begin(data=examples(), experiment="mine", learning_rate=rates, **QUICK)
    assert not (tmp_path / "outputs").exists() and not (tmp_path / "elsewhere").exists()


def test_a_command_is_a_process_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="hidden_size"):
        dtrain.train(overrides=["trainer.hidden_size=3", "launcher=inline"])
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""  # the exception has the sentence


def test_a_model_leaves_no_variable(
    script: types.SimpleNamespace, here: Callable[..., Done], tmp_path: Path
) -> None:
    run = dtrain.train(model=script.build, data=examples(), epochs=1, **QUICK)
    program = """
import os, sys
left = []
for work in sys.argv[1:]:
    before = dict(os.environ)
    exec(work)
    left.append({name: value for name, value in os.environ.items() if before.get(name) != value})
print(left)
"""
    load = f"import dtrain; dtrain.Run({str(run.path)!r}).model()"
    ours = ("KERAS_BACKEND", "PYTHONHASHSEED", "TF_ENABLE_ONEDNN_OPTS")
    own = {name: value for name, value in os.environ.items() if name not in ours}
    said = {
        subprocess.run(
            [sys.executable, "-c", program, *works], capture_output=True, text=True, check=True,
            env={**own, "PYTHONPATH": str(Path(dtrain.__file__).parents[1]),
                 "TF_CPP_MIN_LOG_LEVEL": "2"},
        ).stdout
        for works in ([load, load], ["import tensorflow, keras", load])
    }  # fmt: skip
    # The first has what the framework sets where it is imported, and what comes then has nothing.
    assert len(said) == 1 and said.pop().endswith(", {}]\n")


FAULTS = Path(__file__).parent / "api_script.py"


@pytest.mark.faults
@pytest.mark.parametrize("strategy", ["mirrored", "multiworker", "ps"])
def test_a_class_of_a_script_under_a_strategy(strategy: str, variables: None) -> None:
    command = [sys.executable, str(FAULTS), strategy]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", ["path", "frame", "pair", "dataset"])
def test_tables_are_data(kind: str, here: Callable[..., Done], tmp_path: Path) -> None:
    frame = customers()
    frame.to_csv("new.csv", index=False)
    pair = frame.drop(columns="churn"), frame.churn
    data: Any = {"path": "new.csv", "frame": frame, "pair": pair}
    if kind == "dataset":
        datasets = pytest.importorskip("datasets")
        rows = frame.assign(since=frame.since.astype(str))
        data["dataset"] = datasets.Dataset.from_pandas(rows).train_test_split(0.2, seed=0)
    run = dtrain.train("mlp", data[kind], epochs=1, target="churn", tracking="none", show=False)
    assert (run.path / "columns.json").is_file()
    new = frame.drop(columns="churn").head(30)
    if kind == "dataset":
        new = datasets.Dataset.from_pandas(new.assign(since=new.since.astype(str)))
    predicted = dtrain.predict(run, new, show=False)
    assert predicted.shape == (30, 2) and np.allclose(predicted.sum(1), 1, atol=1e-6)


def test_a_frame_whose_column_has_several_types_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written as Parquet: .*city"):
        dtrain.train("mlp", customers().assign(city=[1, "a"] * 120), show=False)
    with pytest.raises(UsageError, match="validation=tuple: is no table"):
        dtrain.train("mlp", customers(), validation=(np.zeros(3), np.zeros(3)), show=False)
