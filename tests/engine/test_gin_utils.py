"""The rewriting of the command line, and the functions that gin files compute with."""

import gin
import pytest

from t5x import gin_utils


def test_a_binding_on_the_command_line_is_a_gin_binding():
    args = ["--gin_file=a.gin", "--gin.scope/train.x=1", "--gin.N='k = v'", "gin.y=2"]
    expected = ["--gin_file=a.gin", "--gin_bindings=scope/train.x = 1", "--gin_bindings=N = 'k = v'", "gin.y=2"]
    assert gin_utils.rewrite_gin_args(args) == expected
    with pytest.raises(ValueError, match=r"--gin.train.x has no value; write --gin.train.x=VALUE.$"):
        gin_utils.rewrite_gin_args(["--gin.train.x"])


def test_gin_files_compute():
    text = """
        from t5x import gin_utils
        gin_utils.sum_fn.var1 = 3
        gin_utils.sum_fn.var2 = 4
        gin_utils.bool_fn.var1 = "a"
        gin_utils.string_split_fn.text = "a-b-c"
        gin_utils.string_split_fn.separator = "-"
        last/gin_utils.string_split_fn.index = -1
        gin_utils_test_parts.x = [
            @gin_utils.sum_fn(), @gin_utils.bool_fn(), @gin_utils.string_split_fn(), @last/gin_utils.string_split_fn()]
    """

    @gin.configurable
    def gin_utils_test_parts(x):
        return x

    gin.parse_config(text)
    assert gin_utils_test_parts() == [7, True, ["a", "b", "c"], "c"]
