"""Train a persona's reward model on its preference pairs: models/reward/<domain>/<persona>.

A scalar head on a base, with the Bradley-Terry loss of TRL's RewardTrainer. The paper's base is Qwen3-0.6B (profile `paper`); the
embedded default is the sentence encoder. Validation pairs are of other contexts; the length-only null stands beside the accuracy.

    python -m stages reward support-anchor
"""

from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import Field

from mascot.dialogue.types import TURNS_DTYPE, turns_from_rows
from mascot.files import read_parquet, write_json
from mascot.params import Speaker, read_section
from mascot.training.launch import LaunchName, launched
from mascot.training.lora import Lora
from mascot.yamlfiles import Strict

COLUMNS = {
    "context_id": pl.String(),
    "split": pl.String(),
    "turns": TURNS_DTYPE,
    "chosen": pl.String(),
    "rejected": pl.String(),
    "margin": pl.Float64(),
}


class Params(Strict):
    """`base`: the model slot; `lora`: the adapter's shape, or null to train all weights; the rest is as `RewardSettings`.

    `launch` names a file in `launch/`: the processes to train in.
    """

    launch: LaunchName
    base: Literal["encoder", "reward"]
    lora: Lora | None
    epochs: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    seed: int


def run(instance: str) -> None:
    params = read_section(Params, "reward")
    speaker = read_section(Speaker, "speakers", instance)
    pairs = read_parquet(speaker.artifact("data/pairs", ".parquet"), f"pairs@{instance}", COLUMNS)
    if launched(params.launch, "reward", instance):
        return

    from mascot.references import load_base
    from mascot.training.reward import Pair, RewardSettings, train_reward

    by_split: dict[str, list[Pair]] = {"train": [], "validation": []}
    for row in pairs.iter_rows(named=True):
        if row["split"] in by_split:
            pair = Pair(row["context_id"], turns_from_rows(row["turns"]), row["chosen"], row["rejected"], row["margin"])
            by_split[row["split"]].append(pair)
    metrics = train_reward(
        load_base(Path("models/base") / params.base),
        by_split["train"],
        by_split["validation"],
        params.lora,
        RewardSettings(params.epochs, params.batch_size, params.learning_rate, params.seed),
        speaker.artifact("models/reward"),
        speaker.artifact("metrics/reward"),
    )
    if metrics:
        write_json(metrics, speaker.artifact("metrics/reward", ".json"))
