"""Training a Speaker by GRPO: on a tiny Qwen3, with TRL's own trainer; replies are sampled, or recorded where a test needs known ones."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from tiny import tiny_base

from mascot.adapters import adapter_hash
from mascot.dialogue.types import Turn
from mascot.errors import ConfigurationError, DataError, ModelError
from mascot.models import load_tokenizer
from mascot.references import Base
from mascot.training.grpo import GrpoSettings, Prompt, train_grpo
from mascot.training.guards import GuardError, GuardLimits, Guards
from mascot.training.lora import Lora
from mascot.training.sft import Example, SftSettings, train_sft

LORA = Lora(r=4, alpha=8, dropout=0.0, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
SETTINGS = GrpoSettings(
    rollouts=2,
    prompts=2,
    group=4,
    updates=2,
    iterations=1,
    micro_batch=4,
    learning_rate=1e-2,
    kl=0.05,
    clip=0.2,
    scale="group",
    aggregation="sum_then_normalize",
    generation="transformers",
    max_tokens=8,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    seed=7,
)
LOOSE = GuardLimits(entropy_floor=0.0, distinct_2_margin=1.0, similarity_margin=2.0, patience=99)
PROMPTS = [
    Prompt(
        name,
        ({"role": "system", "content": "You are calm."}, {"role": "user", "content": f"I lost my {name}."}),
        (Turn("person", f"I lost my {name}."),),
    )
    for name in ("keys", "job", "dog", "way")
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASCOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return tiny_base(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def start(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained adapter to start from."""
    folder = tmp_path_factory.mktemp("sft")
    examples = [Example(prompt.messages, "That hurts, and it makes sense.") for prompt in PROMPTS]
    settings = SftSettings(epochs=2, batch_size=2, learning_rate=1e-2, max_tokens=256, seed=7)
    train_sft(base, examples[:3], examples[3:], LORA, settings, folder / "adapter", folder / "curves")
    return folder / "adapter"


def texts(completions: Sequence[Any], **_: Any) -> list[str]:
    return [completion[0]["content"] for completion in completions]


def letters(said: Sequence[str]) -> np.ndarray:
    """A stand-in for a sentence encoder that needs no weights: unit vectors of letter counts."""
    counts = np.array([[1e-6 + text.count(chr(97 + place)) for place in range(26)] for text in said])
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


def vowels(completions: Sequence[Any], **_: Any) -> list[float]:
    """A reward that varies: the share of vowels."""
    return [sum(letter in "aeiou" for letter in text) / max(len(text), 1) for text in texts(completions)]


def recorded(base: Base, rollouts: Sequence[Sequence[str]]) -> Callable[..., Any]:
    """TRL's `rollout_func` that answers the i-th rollout's prompts with known replies, each ended by the end token."""
    tokenizer: Any = load_tokenizer(base)
    remaining = iter(rollouts)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        asked = [tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False) for prompt in prompts]
        rank, said = int(os.environ.get("RANK", 0)), list(next(remaining))
        mine = said[rank * len(prompts) : (rank + 1) * len(prompts)]
        ids = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in mine]
        return {"prompt_ids": asked, "completion_ids": ids, "logprobs": None}

    return rollout


def train(base: Base, out: Path, start: Path | None = None, **changed: Any) -> dict[str, Any]:
    limits, rewards = changed.pop("limits", LOOSE), changed.pop("rewards", {"vowels": (vowels, 1.0)})
    rollout, inputs = changed.pop("rollout", None), changed.pop("inputs", [])
    guards = Guards(limits, texts, letters)
    settings = replace(SETTINGS, **changed)
    metrics = train_grpo(base, start, LORA, PROMPTS, rewards, guards, settings, inputs, out, out.with_name("curves"), rollout)
    assert metrics is not None
    return metrics


def adapter(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def curve(out: Path, name: str) -> list[float]:
    return pl.read_csv(out.with_name("curves") / "train" / f"{name}.tsv", separator="\t")[name].to_list()


def test_every_lora_matrix_moves(base: Base, tmp_path: Path) -> None:
    """Pitfall 5: lora_B starts at 0."""
    train(base, tmp_path / "model", rollouts=1, updates=1)
    moved = {name: tensor.abs().max().item() for name, tensor in adapter(tmp_path / "model").items() if "lora_B" in name}
    assert len(moved) == 2 * 4 and all(value > 0 for value in moved.values())


def test_the_kl_is_measured_against_the_start(base: Base, start: Path, tmp_path: Path) -> None:
    """Pitfall 9: against the bare base, it would be far from 0 at the first step."""
    metrics = train(base, tmp_path / "model", start, rollouts=3)
    assert abs(curve(tmp_path / "model", "kl")[0]) < 1e-6
    assert metrics["kl"]["last"] > 1e-5
    before, after = adapter(start), adapter(tmp_path / "model")
    assert before.keys() == after.keys() and any(not torch.equal(before[name], after[name]) for name in before)


def test_a_kl_that_is_not_measured_is_said_to_be_so(base: Base, start: Path, tmp_path: Path) -> None:
    """Pitfall 10."""
    metrics = train(base, tmp_path / "model", start, kl=0.0, rollouts=1)
    assert metrics["kl"] is None
    assert not (tmp_path / "curves" / "train" / "kl.tsv").exists()


def test_each_reward_is_logged_and_how_they_are_joined_matters(base: Base, tmp_path: Path) -> None:
    """Pitfall 8: summed, (0, 1) and (0, 2) give the same advantages; the parts must show, and the other way must be there."""
    said = [["one two", "three four", "five six", "seven eight"] * 2]

    def small(completions: Sequence[Any], **_: Any) -> list[float]:
        return [float("one" in text or "three" in text) for text in texts(completions)]

    def large(completions: Sequence[Any], **_: Any) -> list[float]:
        return [100.0 * ("three" in text) for text in texts(completions)]

    found = {}
    for way in ("sum_then_normalize", "normalize_then_sum"):
        out = tmp_path / way / "model"
        rewards = {"small": (small, 1.0), "large": (large, 1.0)}
        metrics = train(base, out, rollouts=1, updates=1, rewards=rewards, aggregation=way, rollout=recorded(base, said))
        assert curve(out, "rewards_small_mean") == [0.5] and curve(out, "rewards_large_mean") == [25.0]
        assert metrics["rewards"] == {"small": {"first": 0.5, "last": 0.5}, "large": {"first": 25.0, "last": 25.0}}
        found[way] = adapter(out)
    first, second = found.values()
    assert any(not torch.allclose(first[name], second[name], atol=1e-5) for name in first)


def test_a_reward_of_weight_0_is_logged_and_moves_nothing(base: Base, tmp_path: Path) -> None:
    said = [["aaa one", "bcd two", "aei three", "xyz four"] * 2]
    for name, rewards in (
        ("alone", {"vowels": (vowels, 1.0)}),
        ("beside", {"vowels": (vowels, 1.0), "idle": (lambda **columns: [5.0] * 8, 0.0)}),
    ):
        train(base, tmp_path / name / "model", rollouts=1, updates=1, rewards=rewards, rollout=recorded(base, said))
    assert curve(tmp_path / "beside" / "model", "rewards_idle_mean") == [5.0]
    one, other = adapter(tmp_path / "alone" / "model"), adapter(tmp_path / "beside" / "model")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_tied_groups_are_counted(base: Base, tmp_path: Path) -> None:
    """Pitfall 7: one context of two has equal rewards."""
    said = [["aaa one", "bcd two", "aei three", "xyz four", *["same words"] * 4]]
    metrics = train(base, tmp_path / "model", rollouts=1, updates=1, rollout=recorded(base, said))
    assert metrics["tied_groups"] == 0.5


VARIED = ["the cat sat down", "my old red car", "we went far home", "some dogs bark loud"]
DIFFERENT = [*VARIED, "cold rain came again", "blue hats fell off", "big trees grow slow", "no one sang today"]
SAME = ["yes yes yes yes"] * 4


def not_finite(completions: Sequence[Any], **_: Any) -> list[float]:
    return [math.inf, *[0.0] * (len(completions) - 1)]


def flat(completions: Sequence[Any], **_: Any) -> list[float]:
    return [1.0] * len(completions)


BROKEN_GRADIENT = r"stopped at step 1: the gradient of .*lora_.* is not finite.*Lower `speaker.learning_rate`"
BROKEN_WEIGHTS = r"stopped at step 1: .*lora_.* is not finite after the update"
BROKEN_SAMPLING = r"stopped at step 1: the policy's probabilities are not finite"
CLIPPED = r"every reply hit the length limit in 2 rollouts running.*Raise `speaker.sampling.max_tokens`"
COLD = r"the entropy is \d\.\d+ nats a token, under 50"
REPEATING = r"stopped at step 2: distinct-2 fell from 1.00 to 0.04.*Raise `speaker.kl`"
ALIKE = r"stopped at step 2: similarity of replies to different contexts rose from 0\.\d\d to 1.00"
FLAT = r"rewards did not differ within any context in 2 rollouts running"
TWO_VOICES = [*["the cat sat"] * 4, *["dull gym buzz"] * 4]


@pytest.mark.parametrize(
    ("cause", "message", "changed"),
    [
        ("not_finite", BROKEN_GRADIENT, {"learning_rate": 1e30}),
        ("not_finite", BROKEN_WEIGHTS, {"learning_rate": 1e300, "updates": 1}),
        ("not_finite", BROKEN_SAMPLING, {"learning_rate": 1e30, "updates": 1}),
        ("bad_reward", r"the reward `bad` of 1 replies is inf", {"rewards": {"bad": (not_finite, 1.0)}}),
        ("all_clipped", CLIPPED, {"limits": replace(LOOSE, patience=2), "rollouts": 4}),
        ("entropy", COLD, {"limits": replace(LOOSE, entropy_floor=50.0)}),
        ("distinct_2", REPEATING, {"limits": replace(LOOSE, distinct_2_margin=0.3), "said": [DIFFERENT, SAME * 2]}),
        ("similarity", ALIKE, {"limits": replace(LOOSE, similarity_margin=0.1), "said": [TWO_VOICES, ["the cat sat"] * 8]}),
        ("no_variance", FLAT, {"limits": replace(LOOSE, patience=2), "rewards": {"flat": (flat, 1.0)}, "said": [DIFFERENT] * 2}),
    ],
)
def test_a_guard_stops_the_run(base: Base, start: Path, tmp_path: Path, cause: str, message: str, changed: dict[str, Any]) -> None:
    """Pitfalls 6 and 11. Every guard is provoked through the trainer itself. Nothing is left but what had been kept before."""
    changed = dict(changed)
    said = changed.pop("said", None)
    with pytest.raises(ModelError, match=message) as caught:
        train(base, tmp_path / "model", start, rollout=recorded(base, said) if said else None, **changed)
    assert isinstance(caught.value.__cause__, GuardError) and caught.value.__cause__.cause == cause
    assert not (tmp_path / "model").exists() and not (tmp_path / "curves").exists()
    if cause != "all_clipped":
        assert "No adapter had been kept yet." in str(caught.value)


def test_what_is_kept_is_the_policy_before_the_one_that_failed(base: Base, start: Path, tmp_path: Path) -> None:
    """The third rollout is bad, and was drawn from the policy after the second: the one after the first is the last good one."""
    train(base, tmp_path / "good" / "model", start, rollouts=1, rollout=recorded(base, [DIFFERENT]))
    limits = replace(LOOSE, distinct_2_margin=0.3)
    with pytest.raises(ModelError, match="stopped at step 4: distinct-2 fell") as caught:
        train(base, tmp_path / "model", start, rollouts=4, limits=limits, rollout=recorded(base, [DIFFERENT, DIFFERENT, SAME * 2]))
    folder = Path(str(caught.value).split("The last good adapter is in ")[1].rstrip("."))
    assert adapter_hash(folder, base)
    assert [path.name for path in folder.parent.glob("checkpoint-*")] == ["checkpoint-2"]
    kept, wanted = adapter(folder), adapter(tmp_path / "good" / "model")
    assert kept.keys() == wanted.keys() and all(torch.equal(kept[name], wanted[name]) for name in kept)


def test_a_checkpoint_that_was_being_written_is_passed_over(base: Base, start: Path, tmp_path: Path, own_cache: Path, capfd: Any) -> None:
    with pytest.raises(Interrupted):
        train(base, tmp_path / "model", start, rollouts=4, rewards={"vowels": (interrupting(2), 1.0)})
    (torn,) = own_cache.glob("checkpoints/*/checkpoint-4")
    (torn / "trainer_state.json").write_text('{"epoch": 0.')
    capfd.readouterr()
    train(base, tmp_path / "model", start, rollouts=4)
    assert "(2 from the last checkpoint)" in capfd.readouterr().err


def test_a_run_within_the_limits_is_not_stopped(base: Base, start: Path, tmp_path: Path) -> None:
    limits = GuardLimits(entropy_floor=0.1, distinct_2_margin=0.5, similarity_margin=0.9, patience=3)
    metrics = train(base, tmp_path / "model", start, limits=limits, rollout=recorded(base, [DIFFERENT] * 2))
    assert metrics["distinct_2"] == {"first": 1.0, "last": 1.0} and metrics["clipped_ratio"]["last"] == 0.0


class Interrupted(Exception):
    """Stands for a kill: nothing of ours catches it."""


def interrupting(after: int) -> Callable[..., list[float]]:
    """The reward `vowels`, which breaks the run off in the rollout after `after` rollouts."""
    seen = 0

    def vowels_once(completions: Sequence[Any], **_: Any) -> list[float]:
        nonlocal seen
        seen += 1
        if seen > after:
            raise Interrupted
        return vowels(completions)

    vowels_once.__name__ = "vowels"
    return vowels_once


def test_an_interrupted_run_goes_on_and_ends_as_an_undisturbed_one(
    base: Base, start: Path, tmp_path: Path, own_cache: Path, capfd: Any
) -> None:
    train(base, tmp_path / "whole" / "model", start, rollouts=4)
    with pytest.raises(Interrupted):
        train(base, tmp_path / "broken" / "model", start, rollouts=4, rewards={"vowels": (interrupting(2), 1.0)})
    assert not (tmp_path / "broken" / "model").exists() and list(own_cache.glob("checkpoints/*/checkpoint-4"))
    capfd.readouterr()
    train(base, tmp_path / "broken" / "model", start, rollouts=4)
    assert "(4 from the last checkpoint)" in capfd.readouterr().err
    whole, resumed = adapter(tmp_path / "whole" / "model"), adapter(tmp_path / "broken" / "model")
    assert all(torch.allclose(whole[name], resumed[name], atol=1e-6) for name in whole)
    assert curve(tmp_path / "broken" / "model", "reward") == pytest.approx(curve(tmp_path / "whole" / "model", "reward"), abs=1e-5)
    assert not list(own_cache.glob("checkpoints/*"))


@pytest.mark.parametrize("changed", [{"inputs": ["another reward model"]}, {"learning_rate": 2e-2}, {"start": None}])
def test_with_other_inputs_it_starts_afresh(
    base: Base, start: Path, tmp_path: Path, own_cache: Path, capfd: Any, changed: dict[str, Any]
) -> None:
    with pytest.raises(Interrupted):
        train(base, tmp_path / "model", start, rollouts=3, rewards={"vowels": (interrupting(1), 1.0)})
    assert list(own_cache.glob("checkpoints/*/checkpoint-2"))
    capfd.readouterr()
    train(base, tmp_path / "model", **{"start": start, "rollouts": 3} | changed)
    assert "from the last checkpoint" not in capfd.readouterr().err


def test_a_context_over_the_window_is_named(tmp_path: Path) -> None:
    small = tiny_base(tmp_path / "small", window=48)
    with pytest.raises(DataError, match=r"context keys: the prompt has \d+ tokens and the reply may have 40"):
        train(small, tmp_path / "model", max_tokens=40)


def test_an_adapter_of_another_base_is_refused(base: Base, start: Path, tmp_path: Path) -> None:
    other = tiny_base(tmp_path / "other", seed=9)
    with pytest.raises(ModelError, match="belongs to another base"):
        train(other, tmp_path / "model", start)


def test_sizes_that_do_not_divide_are_refused(base: Base, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be cut into 3 updates"):
        train(base, tmp_path / "model", updates=3)


@pytest.mark.slow
def test_two_processes_agree_with_each_other_and_with_one(base: Base, start: Path, tmp_path: Path) -> None:
    """On recorded rollouts, two processes under `accelerate launch` make the update that one makes, and both hold the same adapter."""
    said = [["aaa one", "bcd two", "aei three", "xyz four", "oooo five", "sky six", "sea seven", "dry eight"]]
    (tmp_path / "said.json").write_text(json.dumps(said))
    train(base, tmp_path / "one" / "model", start, rollouts=1, updates=1, micro_batch=8, rollout=recorded(base, said))
    command = ["-m", "accelerate.commands.launch", "--config_file", str(ROOT / "launch/cpu2.yaml"), str(ROOT / "tests/two_processes.py")]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    arguments = [str(Path(base.name)), str(start), str(tmp_path)]
    done = subprocess.run([sys.executable, *command, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = adapter(tmp_path / "one" / "model"), adapter(tmp_path / "two" / "model")
    ranks = [load_file(tmp_path / f"rank{rank}.safetensors") for rank in (0, 1)]
    assert ranks[0].keys() == ranks[1].keys() and all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])
    before = adapter(start)
    assert any(not torch.allclose(before[name], two[name], atol=1e-3) for name in two)
    assert all(torch.allclose(one[name], two[name], atol=2e-4) for name in one)
    for name in ("grad_norm", "loss", "reward", "distinct_2"):  # AdamW's first step hides a gradient of the wrong scale
        assert curve(tmp_path / "two" / "model", name) == pytest.approx(curve(tmp_path / "one" / "model", name), rel=1e-3, abs=1e-6)
