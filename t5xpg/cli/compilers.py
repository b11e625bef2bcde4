"""Google's and NVIDIA's compilers, on a machine without their chips."""

from __future__ import annotations

import importlib.util
import os

from t5xpg.inspection import accelerators

# {platform: (packages of which one must be there, what to call it, the extra of t5xpg that brings it)}
NEEDED = {
    "tpu": (("libtpu",), "libtpu", "tpu"),
    "cuda": (("jax_cuda12_plugin", "jax_cuda13_plugin"), "JAX's CUDA plugin", "cuda"),
}
# XLA chooses among kernels for a GPU's products by timing them, which needs a GPU; Triton's have no tiles until then.
XLA_FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"


def use(target: accelerators.Target) -> None:
    """Lets JAX, which may not have compiled anything, compile for `target`.

    Raises:
      ValueError: its compiler is missing; the message says how to get it.
    """
    packages, name, extra = NEEDED[target.platform]
    given = target.platform == "tpu" and os.environ.get("TPU_LIBRARY_PATH")
    if not given and not any(importlib.util.find_spec(package) for package in packages):
        raise ValueError(f"Compiling for {target.name} needs {name}; pip install 't5xpg[{extra}]'.")
    if target.platform == "tpu":
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # else it looks for the TPUs of this machine on the network
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # else one process at a time, though none uses a TPU
    else:
        os.environ["XLA_FLAGS"] = f"{XLA_FLAGS} {os.environ.get('XLA_FLAGS', '')}"  # of two values the last counts


def devices(target: accelerators.Target) -> list:
    """Returns the target's devices, which can be compiled for and nothing else."""
    import jax
    from jax.experimental import topologies

    from t5xpg.cli.quiet import quiet_stderr

    jax.config.update("jax_platforms", "cpu")
    with quiet_stderr():  # both compilers miss the settings and drivers of their chips' own machine
        found = topologies.get_topology_desc(platform=target.platform, **target.options).devices
    if len(found) != target.chips:
        raise ValueError(f"The compiler takes {target.name} for {len(found)} devices, not {target.chips}.")
    return found
