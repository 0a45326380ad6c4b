"""Private names of Keras and TensorFlow: in one package; one that is gone ends in a sentence."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dtrain

PACKAGE = Path(dtrain.__file__).parent
#: What is private in a path of modules, as an import or a string has it.
PRIVATE = re.compile(r"(keras\.src|keras\._tf_keras|tensorflow\.python|tensorflow\._api)\b")
#: A string that is such a path, and no sentence about one.
PATH = re.compile(rf"{PRIVATE.pattern}(\.\w+)*")
#: Where such a path is compared with where a function comes from, and nothing is looked up.
COMPARED = {"config/trust.py"}
#: Names with an underscore that are Python's, OmegaConf's or Hydra's, in what a task runs.
OTHERS = {"_exit", "_getframe", "_target_"}
#: What runs in a task, where an object may be of Keras or TensorFlow.
TASK = (
    "task", "after", "debug", "export", "inspection",
    "models.py", "augment.py", "schedules.py", "replicas.py", "datasets.py",
)  # fmt: skip


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and len(name) > 1


def own_names(tree: ast.AST) -> set[str]:
    """Names with an underscore that a module of dtrain gives to things of its own."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "_current")
        ):
            found.add(node.attr)
    return found


def used(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield the private names that a module asks objects for, and private paths of modules.

    With their line, and whether it is the module's own ``self`` that is asked.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (private(node.attr) or node.attr == "__internal__"):
            own = getattr(node.value, "id", "") in ("self", "cls", "_current")
            yield node.lineno, node.attr, own
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("attr"):
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant) and private(str(name.value)):
                own = getattr(node.args[0], "id", "") in ("self", "cls", "_current")
                yield node.lineno, str(name.value), own
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from ((node.lineno, name, False) for name in names if PRIVATE.match(name))
        elif isinstance(node, ast.Constant) and PATH.fullmatch(str(node.value)):
            yield node.lineno, str(node.value), False


def elsewhere(sources: dict[str, str]) -> list[str]:
    """Return the uses of private names outside of the packages for them, of files by their path."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    everywhere = {name for tree in trees.values() for name in own_names(tree)}
    found = []
    for path, tree in trees.items():
        if "/keras_internals" in path:
            continue
        task, here = path.split("/")[0] in TASK, own_names(tree)
        for line, name, own in used(tree):
            if PRIVATE.match(name) or name == "__internal__":
                known = path in COMPARED
            else:  # of another object, dtrain's own are asked for in their own file alone
                known = not task or name in (everywhere if own else here) | OTHERS
            if not known:
                found.append(f"{path}:{line}: {name}")
    return found


def sources() -> dict[str, str]:
    return {str(p.relative_to(PACKAGE)): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}


def test_private_names_stand_in_one_package() -> None:
    assert not elsewhere(sources())


@pytest.mark.parametrize(
    "line",
    [
        "import keras.src.losses",
        "from keras.src import backend",
        "from tensorflow.python.distribute import values",
        "importlib.import_module('keras.src.losses.loss')",
        "found = variable._value",
        "variable._value = 3",
        "list(model._flatten_layers())",
        "getattr(layer, '_losses', None)",
        "tf.__internal__.distribute.interim.maybe_merge_call(f)",
        "optimizer._trainable_variables[0]",
    ],
)
def test_a_private_name_elsewhere_is_found(line: str) -> None:
    name = "task/model/build.py"
    [found] = elsewhere({name: (PACKAGE / name).read_text() + f"\n{line}\n"})
    assert found.startswith("task/model/build.py:")


def refused(call: Any, *arguments: Any) -> str:
    from dtrain.errors import TrainingError

    with pytest.raises(TrainingError) as caught:
        call(*arguments)
    text = str(caught.value)
    assert re.search(
        r"^(Keras|TensorFlow) [23]\.\d+\.\d+ \w+ .* does not know; .*constraints", text
    )
    return text


@pytest.mark.task
def test_what_is_gone_is_refused_in_a_sentence() -> None:
    from types import SimpleNamespace

    import keras

    from dtrain.task import keras_internals as internals
    from dtrain.task.backends.tensorflow import keras_internals as of_tensorflow
    from dtrain.task.backends.tensorflow.replica import random_draws
    from dtrain.task.keras_internals import contexts, model, training

    nothing: Any = SimpleNamespace()
    assert "holds the layers inside of a layer" in refused(internals.layers, nothing)
    assert "holds the layers inside of a layer" in refused(internals.inner, nothing)
    assert "keeps losses that layers add" in refused(of_tensorflow.losses_of, nothing)
    assert "sums gradients" in refused(of_tensorflow.take_gradients_as_they_are, nothing)
    assert "keeps the weights that an optimizer updates" in refused(internals.updated, nothing)
    assert "stores variables" in refused(internals.stored, nothing)
    assert "stores variables" in refused(internals.exchange, nothing, 1)
    assert "makes trackers of losses" in refused(internals.loss_trackers, nothing)
    assert "keeps the moments of Adam" in refused(internals.adam_slots, nothing, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "MASKING", "keras.not_there")
        assert "keeps the masks of tensors" in refused(internals.mask, keras.ops.ones(1))
        assert "keeps the masks" in refused(internals.set_mask, keras.ops.ones(1), None)
        patch.setattr(training, "LOSS", "keras.not_there")
        text = refused(internals.divide_losses_by_global_batch, lambda: None, lambda values: values)
        assert "has losses (scale_loss_for_distribution), and computes them" in text
        patch.setattr(contexts, "MODULE", "keras.not_there")
        assert "leave hardware.remat empty" in refused(contexts.check)
        patch.setattr(of_tensorflow, "COLLECTIVES", "tensorflow.not_there")
        with (
            of_tensorflow.local_devices(["GPU:0", "GPU:1"]),
            of_tensorflow.local_devices(["CPU:0"]),
        ):
            pass  # nothing is replaced for them
        made = of_tensorflow.local_devices(["CPU:0", "CPU:1"])
        assert "TensorFlow 2." in refused(made.__enter__)
        patch.setattr(of_tensorflow, "GRAPHS", "tensorflow.not_there")
        assert "marks the operations of a graph" in refused(of_tensorflow.keep_order)
        patch.setattr(of_tensorflow, "OPERATIONS", "tensorflow.not_there")
        assert "registers gradients" in refused(of_tensorflow.optimize_dependencies)
        patch.setitem(of_tensorflow.DRAWS, "dropout", ["inputs"])
        assert "draws random numbers" in refused(random_draws.install)
        assert not hasattr(model.module(of_tensorflow.RANDOM), "drawn_by_dtrain"), (
            "nothing was replaced"
        )
    assert model.module("keras.not_there") is None


#: A plain run, which prints what has been replaced in Keras and TensorFlow when it ends.
USER = '''
import sys

import keras


def ours(value):
    """Whether a function, or the class of an object, is dtrain's."""
    if "Lazy" in type(value).__name__:  # it imports a module when it is asked for anything
        return False
    function = getattr(value, "__code__", None) is not None
    home = value.__globals__["__name__"] if function else type(value).__module__
    return str(home).startswith("dtrain.")


def replaced():
    found = set()
    for name, module in list(sys.modules.items()):
        if not name.startswith(("keras.", "tensorflow.")) or module is None:
            continue
        for key, value in list(vars(module).items()):
            if ours(value):
                found.add(f"{name}.{key}")
            elif isinstance(value, type) and value.__module__ == name:
                found |= {f"{name}.{key}.{k}" for k, v in vars(value).items() if ours(v)}
    return sorted(found)


class Look(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        print("replaced:", replaced())
'''

PLAIN = "replaced: ['tensorflow.python.framework.func_graph.FuncGraph.__init__']"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("one_device", PLAIN), ("mirrored", "'keras.src.losses.loss.reduce_values'")],
)
def test_what_a_plain_run_replaces(strategy: str, expected: str, dtrain, quick, user_code) -> None:
    user_code(USER)
    words = ("model.dropout=0.3", "trainer.callbacks=[{_target_:mine.Look}]")
    run = dtrain(*quick, f"strategy={strategy}", *words)
    assert run.code == 0, run.output
    assert expected in run.log
    assert "base_optimizer" not in run.log, "its optimizer does not branch"


def added(x: Any) -> Any:
    import tensorflow as tf

    return (x * 2.0 + tf.sqrt(x)) + tf.exp(x)


def in_another(x: Any) -> Any:
    import tensorflow as tf

    return tf.function(added)(x)


def in_a_loop(x: Any) -> Any:
    import tensorflow as tf

    return tf.while_loop(lambda i, a: a[0] < 9.0, lambda i, a: (i, added(a)), (0, x))[1]


def in_a_branch(x: Any) -> Any:
    import tensorflow as tf

    return tf.cond(tf.reduce_sum(x) > 0, lambda: added(x), lambda: x)


SUMS = {
    "of a function": added,
    "of another function": in_another,
    "of a loop": in_a_loop,
    "of a branch": in_a_branch,
}


def optimized(function: Any, *given: Any) -> list[Any]:
    """Call a function and return the graphs that TensorFlow has made of it."""
    from tensorflow.python.eager import context

    context.context().enable_graph_collection()
    function(*given)
    graphs = context.context().export_run_metadata().function_graphs
    context.context().disable_graph_collection()
    return [each.post_optimization_graph for each in graphs]


def additions(sums: Any) -> set[str]:
    """Return the kinds of additions of floats that a function has once TensorFlow optimized it."""
    import tensorflow as tf

    found = optimized(tf.function(sums), tf.ones([4]))
    nodes = [node for graph in found for node in graph.node]
    nodes += [node for graph in found for f in graph.library.function for node in f.node_def]
    return {n.op for n in nodes if n.op.startswith("Add") and n.attr["T"].type == 1}


@pytest.mark.task
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_added_as_they_are_written(name: str) -> None:
    from dtrain.task.backends.tensorflow.keras_internals import keep_order

    assert additions(SUMS[name]) == {"AddN"}, "as it is without dtrain"
    for _ in range(2):
        keep_order()
    assert additions(SUMS[name]) == {"AddV2"}


def unordered() -> list[str]:
    """Return the reads of a weight that may come after its update, in a step that recomputes."""
    import tensorflow as tf

    scale, weight = tf.Variable(2.0), tf.Variable([[3.0]])

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.recompute_grad(lambda x: tf.matmul(tf.tanh(x) * scale, weight))(x)
        for variable, gradient in zip(
            (scale, weight), tape.gradient(y, (scale, weight)), strict=True
        ):
            variable.assign_add(gradient)
        return y

    [graph] = [
        g
        for g in optimized(step, tf.ones([4, 1]))
        if any(n.op == "AssignAddVariableOp" for n in g.node)
    ]
    after: dict[str, set[str]] = {}
    for node in graph.node:
        for name in node.input:
            after.setdefault(name.lstrip("^").partition(":")[0], set()).add(node.name)

    def reached(name: str) -> set[str]:
        found, waiting = set(), {name}
        while waiting:
            each = waiting.pop()
            found.add(each)
            waiting |= after.get(each, set()) - found
        return found

    assigned = {n.input[0]: n.name for n in graph.node if n.op == "AssignAddVariableOp"}
    assert len(assigned) == 2
    reads = [n for n in graph.node if n.op == "ReadVariableOp" and n.input[0] in assigned]
    return [n.name for n in reads if assigned[n.input[0]] not in reached(n.name)]


@pytest.mark.task
def test_weights_are_read_before_they_are_assigned() -> None:
    """As threads had it, a layer that is computed again was computed with the next step's."""
    from dtrain.task.backends.tensorflow.keras_internals import keep_order, optimize_dependencies

    assert unordered(), "as it is without dtrain"
    keep_order()
    assert not unordered()
    optimize_dependencies()
    assert not unordered()


def activated(input_shape: Any, classes: int, activation: str) -> Any:
    import keras

    hidden = keras.layers.Dense(4, activation=activation)
    return keras.Sequential([keras.Input(input_shape), hidden, keras.layers.Dense(classes)])


@pytest.mark.task
@pytest.mark.parametrize("custom", [False, True])
def test_dependencies_are_optimized_where_no_gradient_is_custom(custom: bool) -> None:
    """The activation ``silu`` of TensorFlow has a custom gradient."""
    import tensorflow as tf

    from tests.test_steps import prepare, settings

    tf.config.optimizer.set_experimental_options({"dependency_optimization": False})
    activation = "silu" if custom else "tanh"
    model = {"_target_": "tests.test_keras_internals.activated", "activation": activation}
    steps = prepare("OneDevice", 1, settings(model=model))[2]
    steps.train(1)
    options = tf.config.optimizer.get_experimental_options()
    assert options["dependency_optimization"] is not custom


@pytest.mark.task
def test_names_are_those_of_a_process_of_its_own() -> None:
    import keras

    from dtrain.task.keras_internals import fresh_names

    assert keras.layers.Dense(3).name == "dense"
    for _ in range(2):
        with fresh_names():
            assert [keras.layers.Dense(3).name for _ in range(2)] == ["dense", "dense_1"]
    assert keras.layers.Dense(3).name == "dense_1"
