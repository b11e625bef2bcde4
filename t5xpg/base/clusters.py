"""How the processes of one run find each other: as JAX detects it, or as they are told.

JAX knows SLURM, Open MPI 4, TPU VMs, GKE and Kubernetes by itself. MPI of other kinds it asks through mpi4py, which it
wants to be told of; and it gives each process one GPU also where it is alone on its machine.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

LOOKED_FOR = (
    "a SLURM step (srun sets SLURM_STEP_NODELIST), mpirun (Open MPI 4 sets OMPI_MCA_orte_hnp_uri; others need mpi4py), "
    "a TPU VM, and a Kubernetes job (KUBERNETES_SERVICE_HOST; off TPUs it needs the package kubernetes)"
)


def join(
    address: str | None = None, count: int | None = None, index: int | None = None, timeout: int | None = None
) -> None:
    """Joins the other processes of this run; called once, before JAX is used.

    Args:
      address: host:port of the process with index 0. This and the next two are detected where they are None.
      count: how many processes there are.
      index: which of them this is.
      timeout: seconds to wait for the others; None for JAX's default.

    Raises:
      ValueError: nothing was detected, and the arguments do not say it.
    """
    import jax

    optional: dict[str, Any] = {"initialization_timeout": timeout} if timeout else {}
    try:
        jax.distributed.initialize(
            address,
            count,
            index,
            local_device_ids=devices(os.environ),
            cluster_detection_method=detection(os.environ),
            **optional,
        )
    except ValueError as error:
        if "defined" not in str(error):
            raise
        raise ValueError(
            f"--multiprocess has not found this run's other processes: it looked for {LOOKED_FOR}. "
            "Elsewhere give each process --coordinator_address=HOST:PORT --process_count=N --process_index=I."
        ) from error


def detection(variables: Mapping[str, str]) -> str | None:
    """Returns "mpi4py" under an mpirun that JAX does not know and mpi4py does; None for what JAX looks for itself."""
    open_mpi_5 = "OMPI_COMM_WORLD_SIZE" in variables and "OMPI_MCA_orte_hnp_uri" not in variables
    # srun sets PMI_SIZE too, and then JAX knows the step; an mpirun within the step sets MPI_LOCALNRANKS besides.
    mpich = "PMI_SIZE" in variables and ("MPI_LOCALNRANKS" in variables or "SLURM_STEP_NODELIST" not in variables)
    return "mpi4py" if (open_mpi_5 or mpich) and importlib.util.find_spec("mpi4py") else None


def devices(variables: Mapping[str, str]) -> list[int] | None:
    """Returns [] where this process may take all GPUs that it sees, and None where JAX is to choose.

    JAX then gives it the one of its index on its machine. That is one of several where the process is alone there, and
    none at all where the scheduler lets it see but one.
    """
    if "JAX_LOCAL_DEVICE_IDS" in variables:
        return None
    # An mpirun within a SLURM job comes first: SLURM's variables are those of its daemons.
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if name in variables:
            alone = variables[name] == "1"
            break
    else:
        alone = variables.get("SLURM_NTASKS", "unknown") == variables.get("SLURM_STEP_NUM_NODES")
    seen = variables.get("CUDA_VISIBLE_DEVICES", "")
    return [] if alone or (seen and "," not in seen) else None
