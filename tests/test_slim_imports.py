"""What Keras is imported without, in the warm server, works all the same."""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

import pytest

from dtrain.task.process import slim_imports


@pytest.mark.task
def test_a_task_begins_without_them() -> None:
    assert "keras" in sys.modules
    assert not set(slim_imports.OPTIONAL) & set(sys.modules)
    assert gc.isenabled()
    assert gc.get_freeze_count() > 100_000


@pytest.mark.task
def test_pandas() -> None:
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    values = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    expected = model.predict(values, verbose=0)
    assert "pandas" not in sys.modules
    import pandas

    frame = pandas.DataFrame(values, columns=["a", "b"])
    assert (model.predict(frame, verbose=0) == expected).all()
    model.compile("sgd", "mse")
    model.fit(frame, pandas.Series([1.0, 2.0]), verbose=0)


@pytest.mark.task
def test_scikit_learn() -> None:
    import keras
    import numpy as np

    def build(X: np.ndarray, y: np.ndarray) -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    import sklearn.base

    wrapped = keras.wrappers.SKLearnRegressor(build)
    assert isinstance(wrapped, sklearn.base.RegressorMixin)
    from keras.wrappers import SKLearnRegressor

    assert type(wrapped) is SKLearnRegressor
    wrapped.fit(np.ones((4, 2)), np.ones(4), verbose=0)
    assert wrapped.predict(np.ones((3, 2))).shape == (3,)


@pytest.mark.task
def test_matplotlib(tmp_path: Path) -> None:
    import keras
    import numpy as np

    assert "matplotlib" not in sys.modules
    path = tmp_path / "images.png"
    keras.visualization.plot_image_gallery(np.zeros((4, 8, 8, 3)), value_range=(0, 1), path=path)
    assert path.stat().st_size > 0


@pytest.mark.task
def test_keras_imports_them_nowhere_else() -> None:
    import keras

    root = Path(keras.__file__).parent / "src"
    pattern = re.compile(rf"^ *(import|from) ({'|'.join(slim_imports.OPTIONAL)})\b", re.M)
    found = set()
    for path in root.rglob("*.py"):
        for match in pattern.finditer(path.read_text()):
            indent = len(match.group()) - len(match.group().lstrip())
            if indent <= 4 and not path.name.endswith("_test.py"):
                found.add(str(path.relative_to(root)))
    assert found == {
        "trainers/data_adapters/array_slicing.py",
        "visualization/plot_bounding_box_gallery.py",
        "visualization/plot_image_gallery.py",
        "wrappers/fixes.py",
        "wrappers/sklearn_wrapper.py",
        "wrappers/utils.py",
    }


def test_a_module_for_later() -> None:
    later = slim_imports.Later("json.tool")
    assert later.main.__name__ == "main"
    with pytest.raises(AttributeError):
        _ = later.nothing
