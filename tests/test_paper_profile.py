"""The paper profile's training stages on a Qwen3 of a few thousand parameters: the same values but for sizes and references."""

import json
from pathlib import Path

import polars as pl
import pytest
import yaml
from conftest import Workspace
from safetensors import safe_open
from tiny import write_tiny_qwen3

from mascot.dialogue.types import turns_to_rows
from mascot.files import folder_hash, write_parquet
from mascot.personas import load_persona
from stages.reward import COLUMNS

pytestmark = pytest.mark.slow

SMALLER = {
    "sft": {"examples": 4, "validation": 2, "epochs": 1, "batch_size": 2},
    "speaker": {"contexts": 4, "rollouts": 2, "prompts": 2, "group": 4, "micro_batch": 4, "generation": "transformers"},
}


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}])
def test_reward_and_speaker_run_end_to_end(clone: Workspace, tmp_path: Path, lora: dict | None) -> None:
    clone.run("mascot", "profile", "paper")
    params = yaml.safe_load((clone.root / "params.yaml").read_text())
    source = write_tiny_qwen3(tmp_path / "qwen3", window=4096)
    tiny = {"reference": f"path:{source}", "sha256": folder_hash(source)}
    params["base"] |= {"policy": tiny, "reward": tiny}
    for section, values in SMALLER.items():
        params[section] |= values
    params["speaker"]["sampling"]["max_tokens"] = 12
    params["reward"]["lora"] = lora
    (clone.root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    for command in (["base", "policy"], ["base", "reward"], ["base", "encoder"], ["contexts", "support"], ["sft", "support-anchor"]):
        clone.stage(*command)
    persona = load_persona(clone.root / "data/personas/support/anchor.yaml")
    rows = [
        {
            "context_id": f"c{number}",
            "split": "train" if number < 8 else "validation",
            "turns": turns_to_rows(written.context),
            "chosen": written.reply,
            "rejected": persona.counter_exemplars[number],
            "margin": 1.0,
        }
        for number, written in enumerate(persona.replies[:10])
    ]
    write_parquet(pl.DataFrame(rows, schema=COLUMNS), clone.root / "data/pairs/support/anchor.parquet")
    clone.stage("reward", "support-anchor")
    clone.stage("speaker", "support-anchor")

    reward = json.loads((clone.root / "metrics/reward/support/anchor.json").read_text())
    assert reward["weights"] == ("lora" if lora else "full") and reward["accuracy"]["n"] == 2
    speaker = json.loads((clone.root / "metrics/speaker/support/anchor.json").read_text())
    assert abs(speaker["kl"]["first"]) < 1e-5 and set(speaker["rewards"]) == {"persona", "format", "conciseness", "relevance"}
    with safe_open(clone.root / "models/speaker/support/anchor/adapter_model.safetensors", framework="pt") as file:
        adapted = {name.split(".")[-3] for name in file.keys()}  # noqa: SIM118
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj"}

    if lora is None:  # The same stage on two processes, by its parameter.
        params["speaker"]["launch"] = "cpu2"
        (clone.root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
        (clone.root / "metrics/speaker/support/anchor.json").unlink()
        clone.stage("speaker", "support-anchor", env={"OMP_NUM_THREADS": "1"})
        assert json.loads((clone.root / "metrics/speaker/support/anchor.json").read_text())["steps"] == speaker["steps"]
