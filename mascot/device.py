"""Where models run, and in which precision."""

import os

import torch

from mascot.errors import ConfigurationError


def device() -> str:
    """`MASCOT_DEVICE`, else a GPU if there is one, else the CPU. Raises `ConfigurationError` for one that is not there."""
    name = os.environ.get("MASCOT_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(
            f"MASCOT_DEVICE: {name!r} cannot be used ({str(error)[:120]}). Set it to `cpu` or `cuda`, or unset it."
        ) from error
    return name


def precision() -> torch.dtype:
    """fp32 on a CPU, bf16 elsewhere: answers depend on it, so journal keys hold it."""
    return torch.float32 if device() == "cpu" else torch.bfloat16
