"""Training curves by DVCLive, as files that `dvc plots` reads."""

from pathlib import Path
from typing import Any

from dvclive import Live
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mascot.progress import Progress

_SHOWN = ("loss", "learning_rate", "grad_norm", "entropy", "mean_token_accuracy")


class Curves(TrainerCallback):
    """Writes `folder/train/<metric>.tsv` and `folder/validation/<metric>.tsv`, by step; nothing that holds a time.

    Call `close` after the last evaluation.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live = Live(dir=str(folder), dvcyaml=False, save_dvc_exp=False, report=None, monitor_system=False)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        self.live.step = state.global_step
        for name, value in (logs or {}).items():
            metric = name.removeprefix("eval_")
            if metric in _SHOWN:
                self.live.log_metric(f"{'validation' if name.startswith('eval_') else 'train'}/{metric}", value)

    def close(self) -> None:
        """Leave the curves alone in the folder, without DVCLive's summary."""
        self.live.end()
        for part in (self.folder / "plots" / "metrics").iterdir():
            part.rename(self.folder / part.name)
        for path in (self.folder / "plots" / "metrics", self.folder / "plots"):
            path.rmdir()
        for path in self.folder.glob("*.*"):
            path.unlink()


class ShowProgress(TrainerCallback):
    """Shows optimizer steps in our own progress display instead of the trainer's bars."""

    def __init__(self, shown: Progress) -> None:
        self.shown = shown

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.shown.advance(1)
