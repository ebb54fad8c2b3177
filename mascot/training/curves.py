"""Training curves by DVCLive, as files that `dvc plots` reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dvclive import Live
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mascot.files import writing
from mascot.progress import Progress

_SHOWN = (
    *("loss", "learning_rate", "grad_norm", "entropy", "mean_token_accuracy", "accuracy", "margin"),
    *("kl", "reward", "reward_std", "frac_reward_zero_std", "clip_ratio/region_mean", "distinct_2", "similarity", "words"),
    *("completions/mean_length", "completions/clipped_ratio"),
)
"""What is kept of a trainer's logs, beside the mean and the deviation of each reward: nothing that holds a time."""


def write_curves(log_history: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write `folder/train/<metric>.tsv` and `folder/validation/<metric>.tsv`, by step, from the logs that a trainer kept.

    They are written at the end and not on the way, so that a run that was interrupted and resumed has all of them.
    """
    with writing(folder) as temporary:
        live = Live(dir=str(temporary), dvcyaml=False, save_dvc_exp=False, report=None, monitor_system=False)
        for logs in log_history:
            live.step = logs["step"]
            for name, value in logs.items():
                metric = name.removeprefix("eval_")
                if value is not None and (metric in _SHOWN or metric.startswith("rewards/")):
                    live.log_metric(f"{'validation' if name != metric else 'train'}/{metric.replace('/', '_')}", value)
        live.end()
        for part in (temporary / "plots" / "metrics").iterdir():
            part.rename(temporary / part.name)
        for path in (temporary / "plots" / "metrics", temporary / "plots"):
            path.rmdir()
        for path in temporary.glob("*.*"):
            path.unlink()


class ShowProgress(TrainerCallback):
    """Shows optimizer steps in our own progress display instead of the trainer's bars."""

    def __init__(self, shown: Progress) -> None:
        self.shown = shown

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step:
            self.shown.reused_from = "the last checkpoint"
            self.shown.advance(state.global_step, reused=True)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.shown.advance(1)
