import types

import jax
import numpy as np
from jax.sharding import Mesh

from t5x.embedded import platforms


def test_the_mesh_in_force_counts():
    assert platforms.of_this_trace() == jax.default_backend() == "cpu" and platforms.mesh_of_this_trace().empty
    with Mesh(np.array(jax.devices()[:1]), ("data",)) as mesh:
        assert jax.jit(lambda: platforms.mesh_of_this_trace() == mesh)() and platforms.of_this_trace() == "cpu"


def test_devices_that_are_not_here_count_too(monkeypatch):
    elsewhere = types.SimpleNamespace(empty=False, devices=np.array([[types.SimpleNamespace(platform="tpu")]]))
    monkeypatch.setattr(platforms, "mesh_of_this_trace", lambda: elsewhere)
    assert platforms.of_this_trace() == "tpu"
