"""What tasks share with the warm server that they are forked from."""

from __future__ import annotations

import gc
import sys

import pytest


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
