"""Where the user's own code has failed."""

from __future__ import annotations

import json

import numpy as np
import pytest

SCRIPT = "def call(function):\n    return function()\n"


@pytest.mark.task
def test_the_place_is_the_users_frame_next_to_the_error() -> None:
    from dtrain.data import nest
    from dtrain.task.process import own_code

    with pytest.raises(TypeError) as caught:
        nest.leaves()  # type: ignore[call-arg]
    assert own_code.place(caught.value).startswith(f"({__file__}, line ")
    with pytest.raises(ZeroDivisionError) as other:
        nest.mapped(lambda leaf: leaf / 0, 1)
    assert own_code.place(other.value).endswith(", in <lambda>)")
    assert own_code.part(other.value).count("  File ") >= 3
    assert not own_code.is_users(nest.__file__)
    assert own_code.is_users(__file__)
    for library, call in ((json, lambda: json.loads("[")), (np, lambda: np.reshape([1, 2], (3,)))):
        with pytest.raises(ValueError) as third:
            call()
        assert own_code.place(third.value).endswith(", in <lambda>)")
        assert not own_code.is_users(library.__file__)
    assert own_code.place(ValueError("raised nowhere")) == ""
    with pytest.raises(SyntaxError) as wrong:
        compile("x =", "mine.py", "exec")
    assert own_code.place(wrong.value) == "(mine.py, line 1)"
