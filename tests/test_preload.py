"""What tasks share with the warm server that they are forked from."""

from __future__ import annotations

import gc
import importlib
import json
import sys
from pathlib import Path

import pytest

from dtrain.task.late import late


@pytest.mark.task
def test_garbage_is_not_looked_for_among_what_was_imported() -> None:
    assert "keras" in sys.modules
    assert gc.isenabled()
    assert gc.get_freeze_count() > 100_000


@pytest.mark.task
def test_the_wrappers_of_keras_are_imported_when_they_are_used() -> None:
    import keras
    import numpy as np

    assert "sklearn" not in sys.modules
    assert not hasattr(keras.wrappers, "__file__"), "looking at all modules imports nothing"
    assert "sklearn" not in sys.modules

    def build(X: np.ndarray, y: np.ndarray) -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    wrapped = keras.wrappers.SKLearnRegressor(build)
    from keras.wrappers import SKLearnRegressor

    assert type(wrapped) is SKLearnRegressor
    wrapped.fit(np.ones((4, 2)), np.ones(4), verbose=0)
    assert wrapped.predict(np.ones((3, 2))).shape == (3,)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        keras.wrappers.Nothing  # noqa: B018


@pytest.mark.task
def test_pictures_are_drawn_by_what_is_imported_then(tmp_path: Path) -> None:
    import keras
    import numpy as np

    assert "matplotlib" not in sys.modules
    images = np.zeros((4, 8, 8, 3), "uint8")
    keras.visualization.plot_image_gallery(
        images, value_range=(0, 255), path=str(tmp_path / "four.png")
    )
    assert (tmp_path / "four.png").read_bytes().startswith(b"\x89PNG")
    import matplotlib.pyplot as plt

    assert plt is sys.modules["matplotlib.pyplot"], "not what stood in its place"
    assert plt.__file__ is not None


def test_what_is_there_already_stays_what_it_is() -> None:
    names = ("curses", "curses.ascii")
    assert not any(name in sys.modules for name in names), "the test needs some that are not"
    with late("json", *names):
        import curses.ascii
        import json as found

        assert found is json
        assert not hasattr(curses, "__file__") and not hasattr(curses.ascii, "__file__")
    assert not any(name in sys.modules for name in names)
    assert curses.ascii.ESC == 27
    assert sys.modules["curses.ascii"] is importlib.import_module("curses.ascii")
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        curses.Nothing  # noqa: B018
