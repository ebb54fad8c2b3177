"""Training on more than one process: a stage starts itself again under `accelerate launch`, and one process writes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from pydantic import StringConstraints

from mascot.errors import ConfigurationError, ModelError
from mascot.yamlfiles import read_yaml

FOLDER = Path("launch")

LaunchName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")]
"""The name of a file in `launch/`, as params give it."""


def launched(name: str, stage: str, instance: str) -> bool:
    """Run `python -m stages <stage> <instance>` in as many processes as `launch/<name>.yaml` says, unless this is one of them.

    Returns: whether it did, and the caller has nothing left to do. With `num_processes: 1` the caller goes on in its own process.

    Raises:
        ConfigurationError: the file is no configuration of `accelerate launch`.
        ModelError: one of the processes failed; it has said why.
    """
    path = FOLDER / f"{name}.yaml"
    configuration = read_yaml(path)
    processes = configuration.get("num_processes") if isinstance(configuration, dict) else None
    if not isinstance(processes, int) or processes < 1:
        raise ConfigurationError(f"{path}: `num_processes` must be a number from 1 on; see `accelerate config`.")
    if processes == 1 or "LOCAL_RANK" in os.environ:
        return False
    command = ["accelerate.commands.launch", "--config_file", str(path), "-m", "stages", stage, instance]
    if subprocess.run([sys.executable, "-m", *command]).returncode != 0:
        raise ModelError(f"{stage} {instance}: a process under `accelerate launch` ({path}) failed; its error stands above.")
    return True


def process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def is_main_process() -> bool:
    """Whether this process writes: the only one, or the first."""
    return int(os.environ.get("RANK", 0)) == 0


def share(batch_size: int, name: str) -> int:
    """This process's share of a batch. Raises `ConfigurationError` if the batch cannot be shared evenly."""
    processes = process_count()
    if batch_size % processes:
        raise ConfigurationError(f"`{name}` {batch_size} cannot be shared by {processes} processes evenly; make it a multiple.")
    return batch_size // processes
