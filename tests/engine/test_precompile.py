"""T5X's precompile program: its gin, and the files it leaves."""

import numpy as np
from conftest import TESTS, program_settings
from jaxlib import xla_client

from t5x import precompile


def test_leaves_the_steps_programs_and_the_mesh(corpus, tmp_path):
    folder = tmp_path / "programs"
    given = (f"FILES = {corpus!r}", f"MODEL_DIR = '{folder}'", "partitioning.PjitPartitioner.backend = None")
    settings = program_settings(precompile.precompile, TESTS / "micro_precompile.gin", *given)
    precompile.precompile(**settings)
    left = {path.name: path for path in folder.iterdir()}
    assert left.keys() == {"assignment", "lowered_hlo_pre_optimization", "lowered_hlo_post_optimization"}
    np.testing.assert_array_equal(np.load(left.pop("assignment")), settings["partitioner"].mesh.device_ids)
    programs = {name: xla_client.XlaComputation(path.read_bytes()).as_hlo_text() for name, path in left.items()}
    for program in programs.values():
        assert "s32[8,64]" in program and "s32[8,14]" in program  # the whole batch
    assert [" fusion(" in programs[name] for name in sorted(programs)] == [True, False]
