"""Names of TPU slices and GPUs and their figures, against Google's and NVIDIA's tables of them."""

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
    assert (found.name, found.options["topology_name"], found.chips) == (topology, topology, chips)
    assert found.platform == "tpu"


# Of NVIDIA's data sheets: GB of memory, TFLOP/s in bfloat16 with sparsity, GB/s of memory, GB/s of links both ways.
@pytest.mark.parametrize(
    ("name", "found_as", "memory", "sparse", "memory_speed", "links"),
    [
        ("a100", "a100-40:1", 40, 624, 1555, 600),
        ("a100-40:2", "a100-40:2", 40, 624, 1555, 600),
        ("A100-80:8", "a100-80:8", 80, 624, 2039, 600),
        ("h100", "h100:1", 80, 1979, 3350, 900),
        ("h100-80:8", "h100:8", 80, 1979, 3350, 900),
        ("h200:4", "h200:4", 141, 1979, 4800, 900),
        ("l4", "l4:1", 24, 242, 300, 64),
    ],
)
def test_gpus_have_the_figures_of_their_data_sheets(name, found_as, memory, sparse, memory_speed, links):
    found, chip = accelerators.find(name), accelerators.find(name).chip
    assert (found.name, found.platform) == (found_as, "cuda")
    number = int(found_as.partition(":")[2])
    assert (found.chips, found.options["topology"]) == (number, f"1x1x{number}")
    assert 0.9 * memory < chip.memory < memory  # CUDA and error correction take a part
    assert chip.tflops == pytest.approx(sparse / 2, abs=1)
    assert (chip.memory_speed, chip.network_speed) == (memory_speed, links / 2)
    assert f"device_memory_size: {chip.memory * 1024**3} " in found.options["target_config"]


@pytest.mark.parametrize("name", accelerators.GPUS)
def test_a_gpus_units_come_to_about_the_figure_of_its_data_sheet(name):
    chip = accelerators.GPUS[name]
    # Operations of a multiprocessor in a cycle, by NVIDIA's white papers; tensor cores have a lower clock on Hopper.
    each = {(8, 0): 2048, (8, 9): 1024, (9, 0): 4096}[chip.design.capability]
    assert chip.design.processors * each * chip.design.clock / 1000 == pytest.approx(chip.tflops, rel=0.09)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v9x-4", "'v9x-4' is nothing that steps are compiled for; that is TPU slices, v4-32, v5e-16"),
        ("laptop", "and GPUs, a100-40, a100-80, h100, h200, l4, or several of a node, h100:8."),
        ("v5e", "'v5e' is nothing"),
        ("v5e-2", "no slice of 2; those are of 1, 4, 8, 16, 32, 64, 128, 256"),
        ("v4-4", "no slice of 4; those are of 8, 16, 32"),
        ("v5e-12", "no slice of 12"),
        ("v5p:4x4", "a v5p slice has 3 dimensions, as v5p:2x2x2 has"),
        ("v5e:0x4", "a v5e slice has 2 dimensions"),
        ("v100:4", "'v100:4' is nothing"),
        ("h100-8", "'h100-8' is nothing"),
        ("h100:x", "'h100:x' is nothing"),
        ("h100:16", "h100:16: steps are compiled for 1 to 8 GPUs of one node, as h100:8."),
        ("a100:0", "a100:0: steps are compiled for 1 to 8 GPUs of one node, as a100-40:8."),
    ],
)
def test_another_name_is_refused_in_a_line_that_lists_what_there_is(name, message):
    with pytest.raises(ValueError) as error:
        accelerators.find(name)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_each_limit_has_a_time_of_its_own():
    chip = accelerators.find("v5e-4").chip  # 197 TFLOP/s, 819 GB/s, 200 GB/s
    seconds = chip.seconds(operations=1.97e12, accessed=8.19e9, sent=1e9)
    assert seconds == pytest.approx({"arithmetic": 0.01, "memory": 0.01, "network": 0.005})
