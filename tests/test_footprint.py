"""The footprint of a profile: counts against those known, by hand and of allocated models; nothing large is allocated."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import ROOT, Workspace
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig, Qwen3Config

from mascot.errors import ConfigurationError, ModelError
from mascot.footprint import cache_bytes, count, footprint, logits_bytes, training_bytes

QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "torch_dtype": "bfloat16",
}
SIZES = {
    "Qwen/Qwen3-8B": QWEN3
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 12288,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-0.6B": QWEN3
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
}
PEAK = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print(done.stdout, done.stderr)
sys.exit(done.returncode)
"""
"""Runs a command and prints its peak of resident KiB first. The peak is carried on from parent to child: this parent is small."""

TINY = LlamaConfig(
    vocab_size=32,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    pad_token_id=0,
)
TINY_BACKBONE = 32 * 8 + 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 + 2 * 8) + 8
"""Embeddings, which are the output's too; in each layer q, k and v, o, the three of the MLP and two norms; the last norm."""
TINY_LORA = 2 * 2 * ((8 + 8) + (8 + 4))
"""Rank 2, in each of two layers: q_proj of 8 to 8, v_proj of 8 to 4."""
LORA = {"r": 2, "alpha": 4, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}


def run(folder: Path, *command: str, hub: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with this working tree's code, off the network."""
    env = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub or folder / "empty"), "COLUMNS": "200"}
    return Workspace(folder, folder / "cache").run(*command, check=False, env=env)


@dataclass(frozen=True)
class Shown:
    """What `mascot footprint paper` printed, and the peak of its memory (bytes)."""

    text: str
    peak: int


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """The profile `paper` off the network, with nothing of its models in the Hub's cache but their configurations."""
    folder = tmp_path_factory.mktemp("paper")
    params = yaml.safe_load((ROOT / "mascot" / "profiles" / "paper.yaml").read_text())
    for slot in params["base"].values():
        if slot["reference"].startswith("hf:"):
            name, _, revision = slot["reference"].removeprefix("hf:").partition("@")
            snapshot = folder / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / revision
            snapshot.mkdir(parents=True)
            (snapshot / "config.json").write_text(json.dumps(SIZES[name]))
    done = run(folder, sys.executable, "-c", PEAK, "mascot", "footprint", "paper", hub=folder / "hub")
    assert done.returncode == 0, done.stdout + done.stderr
    peak, _, text = done.stdout.partition("\n")
    return Shown(text, int(peak) * 1024)


@pytest.fixture
def tiny(tmp_path: Path) -> dict[str, Any]:
    """Params whose policy and reward model are a folder that holds a configuration and nothing else."""
    TINY.save_pretrained(tmp_path / "tiny")
    base = {"reference": f"path:{tmp_path / 'tiny'}"}
    return {
        "base": {"policy": base, "reward": base},
        "speakers": {"support-anchor": {}, "support-beacon": {}},
        "sft": {"max_tokens": 100, "lora": LORA | {"r": 1}},
        "candidates": {"batch_size": 7, "sampling": {"max_tokens": 50}},
    }


@pytest.fixture
def tiny_speaker() -> dict[str, Any]:
    """A section `speaker`."""
    return {"lora": LORA, "prompts": 3, "group": 4, "micro_batch": 2, "sampling": {"max_tokens": 20}}


def numbers(text: str, label: str) -> list[str]:
    """What stands beside a label, in the first line that begins with it."""
    line = next(line.strip() for line in text.splitlines() if line.strip().startswith(label))
    return re.split(r"\s{2,}", line)[1:]


def test_qwen3_8b_with_lora_has_the_known_number_of_parameters(paper: Shown) -> None:
    policy = paper.text[paper.text.index("policy: hf:Qwen/Qwen3-8B@") :]
    assert numbers(policy, "parameters") == ["8,190,735,360"]
    assert numbers(policy, "trainable parameters") == ["15,335,424", "0.187 %"]
    assert numbers(policy, "frozen weights") == ["30.51 GiB", "15.26 GiB"]
    assert numbers(policy, "base, stays on the Hub: bfloat16") == ["15.26 GiB"]
    assert "Activations are not included" in policy


def test_the_8b_model_is_never_allocated(paper: Shown) -> None:
    assert paper.peak < 2.5e9


def test_tied_weights_are_counted_once() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen3Config(**SIZES["Qwen/Qwen3-0.6B"]))
    assert count(model, None).base == 596_049_920


def test_counts_are_those_by_hand_and_of_an_allocated_model() -> None:
    def lora() -> LoraConfig:
        return LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"])

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(TINY)
    counts = count(model, lora())
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}
    assert (counts.base, counts.frozen, counts.trainable) == (TINY_BACKBONE, TINY_BACKBONE, TINY_LORA)
    allocated: Any = get_peft_model(AutoModelForCausalLM.from_config(TINY), lora())
    assert allocated.get_nb_trainable_parameters() == (counts.trainable, counts.trainable + counts.frozen)
    assert counts.share == counts.trainable / (counts.trainable + counts.frozen)


@pytest.mark.parametrize("adapted", [True, False])
def test_a_reward_model_trains_its_score_head(adapted: bool) -> None:
    def lora() -> LoraConfig | None:
        return LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj", "v_proj"]) if adapted else None

    config = LlamaConfig(**TINY.to_dict() | {"num_labels": 1})
    with torch.device("meta"):
        counts = count(AutoModelForSequenceClassification.from_config(config), lora())
    assert counts.base == TINY_BACKBONE + 8
    assert counts.trainable == (TINY_LORA + 8 if adapted else TINY_BACKBONE + 8)
    assert counts == count(AutoModelForSequenceClassification.from_config(config), lora())


def test_the_formulas_by_hand() -> None:
    qwen = Qwen3Config(**SIZES["Qwen/Qwen3-8B"])
    assert training_bytes(15_335_424) == 245_366_784
    assert cache_bytes(qwen, 1, 1, torch.bfloat16) == 147_456  # 144 KiB a token
    assert cache_bytes(qwen, 64, 2144, torch.float32) == 64 * 2144 * 2 * 147_456
    assert logits_bytes(qwen, 8, 96) == 8 * 96 * 151_936 * 4
    plain = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=3, intermediate_size=8)
    assert cache_bytes(plain, 5, 7, torch.float32) == 2 * 3 * 8 * 4 * 7 * 5


def test_params_say_what_is_computed(tiny: dict[str, Any], tiny_speaker: dict[str, Any], tmp_path: Path) -> None:
    """Without `speaker`, the SFT adapter and the batches of `candidates`; with it, its adapter, rollouts and updates."""
    before = footprint(tiny, "here", tmp_path / "none")
    assert numbers(before, "trainable parameters")[0] == f"{TINY_LORA // 2:,}"
    assert "KV cache of a rollout: 7 x (100 + 50) tokens" in before
    assert "adapters, fp32: 2 of" in before
    assert "logits" not in before and len(before.split("\n\n")) == 3
    after = footprint(tiny | {"speaker": tiny_speaker, "reward": {"base": "reward", "lora": None}}, "here", tmp_path / "none")
    policy, reward = after.split("\n\n")[1:3]
    assert numbers(policy, "trainable parameters")[0] == f"{TINY_LORA:,}"
    assert "KV cache of a rollout: 12 x (100 + 20) tokens" in policy
    assert "logits of an update: 2 x 20 tokens" in policy
    assert "adapters, fp32: 4 of" in policy
    assert numbers(reward, "trainable parameters") == [f"{TINY_BACKBONE + 8:,}", "100.000 %"]
    adapted = footprint(tiny | {"reward": {"base": "reward", "lora": LORA}}, "here", tmp_path / "none")
    assert numbers(adapted.split("\n\n")[2], "trainable parameters")[0] == f"{TINY_LORA + 8:,}"


def test_a_built_base_is_read_if_it_is_of_the_same_reference(tiny: dict[str, Any], tmp_path: Path) -> None:
    built = tmp_path / "models" / "base" / "policy"
    TINY.save_pretrained(built)
    (built / "reference.json").write_text(json.dumps({"reference": "pypi:some-model==1", "kind": "weights"}))
    tiny["base"]["policy"] = {"reference": "pypi:some-model==1"}
    assert numbers(footprint(tiny, "here", built.parent), "parameters") == [f"{TINY_BACKBONE:,}"]
    tiny["base"]["policy"] = {"reference": "pypi:some-model==2"}
    with pytest.raises(ModelError, match="dvc repro base@policy"):
        footprint(tiny, "here", built.parent)


@pytest.mark.parametrize(
    ("key", "value", "kind", "message"),
    [
        ("sft", {"max_tokens": 100}, ConfigurationError, "here: `sft.lora` is missing"),
        ("sft", {"max_tokens": 100, "lora": LORA | {"target_modules": ["c_attn"]}}, ConfigurationError, "here: sft.lora: does not fit"),
        ("reward", {"base": "encoder", "lora": None}, ConfigurationError, r"`base\.encoder` is missing"),
        ("base", {"policy": {"reference": "path:gone/away"}}, ModelError, "path:gone/away: there is no such folder"),
        ("base", {"policy": {"reference": "hf:Qwen/Qwen3-8B@main"}}, ModelError, "not a model reference"),
    ],
)
def test_what_is_wrong_is_named(key: str, value: Any, kind: type[Exception], message: str, tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        footprint(tiny | {key: value}, "here", tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "`nowhere` is not a profile. There are: paper, quick"),
        (["quick"], "dvc repro base@policy"),
        (["paper"], "hf:Qwen/Qwen3-8B@b968826d9c46dd6066d109eabc6255188de91218: cannot be loaded from Qwen/Qwen3-8B"),
        ([], "there is no params.yaml here"),
    ],
)
def test_an_error_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(tmp_path, "mascot", "footprint", *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1


def test_the_params_of_this_folder_are_the_default(tiny: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tiny))
    done = run(tmp_path, "mascot", "footprint")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Footprint of params.yaml")
    assert numbers(done.stdout, "parameters") == [f"{TINY_BACKBONE:,}"]
