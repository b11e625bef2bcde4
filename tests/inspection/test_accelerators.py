"""Names of TPU slices, against Google's tables of them."""

import pytest

from t5xpg.inspection import accelerators


@pytest.mark.parametrize(
    ("name", "topology", "chips"),
    [
        ("v4-8", "v4:2x2x1", 4),  # the number counts TensorCores, of which v4 and v5p have two a chip
        ("v4-32", "v4:2x2x4", 16),
        ("v4-64", "v4:2x4x4", 32),
        ("v4-4096", "v4:8x16x16", 2048),
        ("v5p-16", "v5p:2x2x2", 8),
        ("v5p-256", "v5p:4x4x8", 128),
        ("v5p:4x4x6", "v5p:4x4x6", 96),
        ("v5e-1", "v5e:1x1", 1),
        ("v5e-4", "v5e:2x2", 4),
        ("v5e-16", "v5e:4x4", 16),
        ("v5litepod-64", "v5e:8x8", 64),
        ("V5LITEPOD-256", "v5e:16x16", 256),
        ("v5e:4x4", "v5e:4x4", 16),
        ("v6e-8", "v6e:2x4", 8),
        ("v6e-128", "v6e:8x16", 128),
    ],
)
def test_a_slice_has_the_shape_that_google_gives_it(name, topology, chips):
    found = accelerators.find(name)
    assert (found.topology, found.chips) == (topology, chips)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v9x-4", "'v9x-4' is not a TPU slice that steps are compiled for; those are v4-32, v5e-16"),
        ("laptop", "'laptop' is not a TPU slice"),
        ("v5e", "'v5e' is not a TPU slice"),
        ("v5e-2", "no slice of 2; those are of 1, 4, 8, 16, 32, 64, 128, 256"),
        ("v4-4", "no slice of 4; those are of 8, 16, 32"),
        ("v5e-12", "no slice of 12"),
        ("v5p:4x4", "a v5p slice has 3 dimensions, as v5p:2x2x2 has"),
        ("v5e:0x4", "a v5e slice has 2 dimensions"),
        *((gpu, f"{gpu} is a GPU") for gpu in ("h100", "h100:8", "h200", "a100-80:8", "l4", "v100:4", "gb200:4")),
    ],
)
def test_another_name_is_refused_in_a_line_that_lists_what_there_is(name, message):
    with pytest.raises(ValueError) as error:
        accelerators.find(name)
    assert message in str(error.value) and "\n" not in str(error.value)
