"""What tells processes of each other, by their variables. Real ones: tests/faults/test_other_numbers.py."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from jax._src import distributed, xla_bridge

from t5xpg.base import clusters

OPEN_MPI = {
    **{"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5"},
    **{"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
}
SLURM = {
    **{"SLURM_JOB_ID": "4099", "SLURM_STEP_NODELIST": "node[07-08],x1", "SLURM_STEP_NUM_NODES": "2"},
    **{"SLURM_NTASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"},
}
ALONE = {**SLURM, "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}


@pytest.fixture
def joined(monkeypatch):
    """variables -> (coordinator, processes, this process, its GPUs) of clusters.join, in whose JAX nobody answers."""
    found = {}

    def client(address, process, **settings):
        found.update(address=address, process=process)
        return SimpleNamespace(connect=lambda: None)

    state = distributed.State()
    state.initialize_preemption_sync_manager = lambda: None
    runtime = {"get_distributed_runtime_client": client, "get_distributed_runtime_service": lambda *_, **__: None}
    monkeypatch.setattr(distributed, "global_state", state)
    monkeypatch.setattr(distributed, "_jax", SimpleNamespace(**runtime))
    monkeypatch.setattr(distributed, "config", SimpleNamespace(update=found.__setitem__))
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)

    def join(variables, *where, **how):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        clusters.join(*where, **how)
        return found["address"], state.num_processes, found["process"], found.get("jax_cuda_visible_devices", "all")

    return join


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (SLURM, ("node07:61443", 8, 5, "1")),
        (ALONE, ("node07:61443", 2, 1, "all")),
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "3"}, ("node07:61443", 8, 5, "all")),
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "2,3"}, ("node07:61443", 8, 5, "1")),
        ({**ALONE, "JAX_LOCAL_DEVICE_IDS": "2,3"}, ("node07:61443", 2, 1, "2,3")),
        ({**SLURM, "JAX_COORDINATOR_PORT": "1234"}, ("node07:1234", 8, 5, "1")),
        ({**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": "8192.0;tcp://10.0.0.1,10.1.0.1:5000"}, ("10.0.0.1:61442", 8, 5, "1")),
        # mpirun within a SLURM job of two nodes: four processes on each, of which SLURM knows nothing.
        (
            {**ALONE, **OPEN_MPI, "OMPI_MCA_orte_hnp_uri": "0.0;tcp://10.0.0.1:5000"},
            ("10.0.0.1:61440", 8, 5, "1"),
        ),
    ],
)
def test_it_is_detected(joined, variables, expected):
    assert joined(variables) == expected


@pytest.mark.parametrize(
    "variables", [{**OPEN_MPI, **SLURM}, {"PMI_SIZE": "8", "PMI_RANK": "5"}], ids=["Open MPI 5", "MPICH"]
)
def test_other_mpi_is_asked_through_mpi4py(joined, variables, monkeypatch):
    world = SimpleNamespace(
        Get_rank=lambda: 5, Get_size=lambda: 8, bcast=lambda mine, root: "node1:5000", Split_type=lambda kind: local
    )
    local = SimpleNamespace(Get_rank=lambda: 1)
    mpi4py = ModuleType("mpi4py")
    mpi4py.MPI = SimpleNamespace(COMM_WORLD=world, COMM_TYPE_SHARED=0)
    mpi4py.__spec__ = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "mpi4py", mpi4py)
    assert joined({**variables, "MPI_LOCALNRANKS": "4"}) == ("node1:5000", 8, 5, "1")


@pytest.mark.parametrize(
    ("variables", "where", "expected"),
    [({}, ("[::1]:1234", 4, 3), ("[::1]:1234", 4, 3, "all")), (SLURM, ("node9:1234",), ("node9:1234", 8, 5, "1"))],
)
def test_what_is_given_counts_and_the_rest_is_detected(joined, variables, where, expected):
    assert joined(variables, *where) == expected


@pytest.mark.parametrize("where", [(), ("localhost:1234",), ("localhost:1234", 2), (None, 2, 1)])
@pytest.mark.parametrize("variables", [{}, {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, OPEN_MPI])
def test_where_nothing_is_found_the_flags_are_named(joined, variables, where):
    with pytest.raises(ValueError) as error:
        joined(variables, *where)
    line = str(error.value)
    assert "\n" not in line and line.startswith("--multiprocess has not found this run's other processes")
    for name in ("SLURM_STEP_NODELIST", "OMPI_MCA_orte_hnp_uri", "mpi4py", "TPU VM", "KUBERNETES_SERVICE_HOST"):
        assert name in line
    assert line.endswith("--coordinator_address=HOST:PORT --process_count=N --process_index=I.")


def test_an_index_that_cannot_be_is_jax_s_error(joined):
    with pytest.raises(ValueError, match="process_id=2, num_processes=2"):
        joined({}, "localhost:1234", 2, 2)
