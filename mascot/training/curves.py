"""Training curves by DVCLive, as files that `dvc plots` reads."""

from pathlib import Path
from typing import Any

from dvclive import Live
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mascot.progress import Progress

_TIMES = ("runtime", "per_second", "flos")


class Curves(TrainerCallback):
    """Writes what the trainer logs to `folder/plots/metrics/...tsv`, by step; wall times are left out, since outs hold none."""

    def __init__(self, folder: Path) -> None:
        self.live = Live(dir=str(folder), dvcyaml=False, save_dvc_exp=False, report=None, monitor_system=False)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any) -> None:
        self.live.step = state.global_step
        for name, value in (logs or {}).items():
            if isinstance(value, int | float) and not any(mark in name for mark in _TIMES):
                self.live.log_metric(name.replace("eval_", "validation/") if name.startswith("eval_") else f"train/{name}", value)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.live.end()


class ShowProgress(TrainerCallback):
    """Shows optimizer steps in our own progress display instead of the trainer's bars."""

    def __init__(self, shown: Progress) -> None:
        self.shown = shown

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.shown.advance(1)
