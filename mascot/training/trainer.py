"""What the trainers have in common: their arguments, quiet output, and a check of what they end with."""

import math
import os
import warnings
from typing import Any

import torch
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from mascot.device import device, precision


def shared_arguments(seed: int, learning_rate: float) -> dict[str, Any]:
    """Arguments of every trainer: nothing is filtered out of the logs, nothing is saved or reported unless asked for.

    `MASCOT_REPORT_TO` (such as `wandb`; several with commas) names trackers of transformers that are told as well.
    """
    trackers = [name.strip() for name in os.environ.get("MASCOT_REPORT_TO", "").split(",") if name.strip()]
    return {
        "seed": seed,
        "learning_rate": learning_rate,
        "use_cpu": device() == "cpu",
        "bf16": precision() == torch.bfloat16,
        "gradient_checkpointing": device() != "cpu",
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "save_strategy": "no",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": trackers or "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "ddp_find_unused_parameters": False,
    }


def silence(trainer: Any) -> None:
    """Leave progress to our own display, and drop PEFT's warning that a reference is no folder (it looks for a changed vocabulary)."""
    warnings.filterwarnings("ignore", message="Could not find a config file")
    for printer in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printer)


def finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)
