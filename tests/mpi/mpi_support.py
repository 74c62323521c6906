"""What the tests of swiglu-mpi share: starting ranks, on this machine and as any user, also root in a container."""
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from support import Outcome  # noqa: E402

RANKS_BINARY = os.environ["SWIGLU_MPI_BIN"]
LAUNCHER = os.environ["SWIGLU_MPIEXEC"]
# OpenMPI's: root may start ranks, more of them than cores, and says nothing of its own when one fails.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_base_warn_component_unused": "0",
               "OMPI_MCA_hwloc_base_binding_policy": "none"}


def environment(**more):
    usual = {k: v for k, v in os.environ.items() if k not in ("SWIGLU_ISA", "SWIGLU_THREADS")}
    return {**usual, **ENVIRONMENT, **more}


def launch(*words, **how):
    """Starts the launcher with these words, in a process group of its own."""
    return subprocess.Popen([LAUNCHER, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment(**how.pop("env", {})), start_new_session=True, **how)


def finish(started, timeout=240):
    try:
        out, err = started.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        out, err = started.communicate()
        raise AssertionError(f"the ranks did not end within {timeout} s:\n{out}\n{err}")
    return Outcome(subprocess.CompletedProcess(started.args, started.returncode, out, err))


def ranks(count, *arguments, timeout=240, **how):
    """swiglu-mpi with these arguments on so many ranks."""
    return finish(launch("-n", count, RANKS_BINARY, *arguments, **how), timeout)


def errors(outcome):
    """Lines of ours; the launcher has things to say, too."""
    return [line for line in outcome.err.splitlines() if line.startswith("swiglu: error: ")]


def running_ranks(pid):
    """Ranks below the launcher `pid`: rank to process."""
    found, below = {}, [pid]
    while below:
        for task in pathlib.Path(f"/proc/{below.pop(0)}/task").glob("*/children"):
            for child in task.read_text().split():
                below.append(int(child))
                process = pathlib.Path(f"/proc/{child}")
                if (process / "comm").read_text().strip() != os.path.basename(RANKS_BINARY)[:15]:
                    continue
                for variable in (process / "environ").read_bytes().split(b"\0"):
                    name, _, value = variable.partition(b"=")
                    if name in (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK"):
                        found[int(value)] = int(child)
    return found


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it did not come to pass")
