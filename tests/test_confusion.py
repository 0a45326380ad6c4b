"""How many examples of each class were taken for each other one."""

from __future__ import annotations

import pytest


@pytest.mark.task
def test_one_output_is_compared_with_what_its_loss_takes_it_for() -> None:
    import keras
    import numpy as np

    from dtrain.after.evaluate import confusion_of

    outputs, labels = np.array([[0.3], [0.4], [-2.0]], "float32"), np.array([1, 1, 0])
    target = "keras.losses.BinaryCrossentropy"
    for logits, expected in ((True, [[1, 0], [0, 2]]), (False, [[1, 0], [2, 0]])):
        metric = confusion_of({"_target_": target, "from_logits": logits}, outputs)
        assert metric is not None
        metric.update_state(labels, keras.ops.convert_to_tensor(outputs))
        assert np.asarray(metric.matrix).tolist() == expected
