"""The persona reward model: rendering, pooling, the score head, and what is refused. On a tiny Qwen3 and on the real encoder."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_base
from transformers import set_seed

from mascot.dialogue.types import Turn
from mascot.errors import DataError, ModelError
from mascot.references import Base
from mascot.rewards.model import MANIFEST, RewardModel, encode, load_scalar_model, renderer_hash, reward_hash, reward_tokenizer, scores
from mascot.training.lora import Lora
from mascot.training.reward import Pair, RewardSettings, measure, train_reward

LORA = Lora(r=4, alpha=8, dropout=0.0, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
SETTINGS = RewardSettings(epochs=3, batch_size=2, learning_rate=3e-3, seed=7)
TALK = (Turn("person", "I lost the keys again."), Turn("listener", "Where did you look?"), Turn("person", "Everywhere."))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return tiny_base(tmp_path_factory.mktemp("tiny"))


def pairs(contexts: list[str]) -> list[Pair]:
    """Pairs in which the chosen reply names a feeling and the rejected one gives an order."""
    return [
        Pair(
            context, (Turn("person", f"Something happened with the {context}."),), f"That {feeling} makes sense.", "Write a list now.", 1.0
        )
        for context in contexts
        for feeling in ("worry", "sadness", "relief")
    ]


@pytest.fixture(scope="module", params=["full", "lora"])
def trained(request: pytest.FixtureRequest, base: Base, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp(request.param)
    lora = LORA if request.param == "lora" else None
    metrics = train_reward(
        base, pairs(["dog", "car", "job", "tea"]), pairs(["cat", "bus"]), lora, SETTINGS, folder / "model", folder / "curves"
    )
    assert metrics
    return folder, metrics


def test_it_learns_and_says_what_it_holds(trained: tuple[Path, dict[str, Any]], request: pytest.FixtureRequest) -> None:
    folder, metrics = trained
    assert metrics["accuracy"]["mean"] == 1.0 and metrics["accuracy"]["n"] == 6 and metrics["accuracy"]["groups"] == 2
    manifest = json.loads((folder / "model" / MANIFEST).read_text())
    assert manifest["weights"] == metrics["weights"] and any("score" in name for name in manifest["head"])
    assert (folder / "curves" / "train" / "loss.tsv").is_file()


def test_saved_and_loaded_it_gives_the_same_scores(trained: tuple[Path, dict[str, Any]], base: Base) -> None:
    """Pitfall 4. The two scores differ, so that a fresh head could not pass; loading twice under different seeds gives the same."""
    folder, _ = trained
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(RewardModel(folder / "model", base).score([(TALK, "That worry makes sense."), (TALK, "Write a list now.")]))
    assert found[0] == found[1] and found[0][0] > found[0][1] + 0.5


def test_without_its_head_it_is_refused(trained: tuple[Path, dict[str, Any]], base: Base, tmp_path: Path) -> None:
    folder = shutil.copytree(trained[0] / "model", tmp_path / "model")
    weights = next(folder.glob("*model.safetensors"))
    save_file({name: tensor for name, tensor in load_file(weights).items() if "score" not in name}, weights)
    with pytest.raises(ModelError, match="the score head is not among the weights"):
        RewardModel(folder, base)


def test_of_another_base_it_is_refused(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="belongs to another base"):
        RewardModel(trained[0] / "model", tiny_base(tmp_path, seed=5))


def test_under_another_renderer_it_is_refused(trained: tuple[Path, dict[str, Any]], base: Base, tmp_path: Path) -> None:
    """Pitfall 3."""
    folder = shutil.copytree(trained[0] / "model", tmp_path / "model")
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"renderer": "0" * 64}))
    with pytest.raises(ModelError, match="rendered or tokenised in another way"):
        RewardModel(folder, base)


def test_its_hash_follows_its_weights(trained: tuple[Path, dict[str, Any]], base: Base, tmp_path: Path) -> None:
    folder = shutil.copytree(trained[0] / "model", tmp_path / "model")
    before = reward_hash(folder, base)
    weights = next(folder.glob("*model.safetensors"))
    tensors = load_file(weights)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] + 0.1}, weights)
    assert reward_hash(folder, base) != before


def test_the_same_training_gives_the_same_model(base: Base, tmp_path: Path) -> None:
    arguments = (base, pairs(["dog", "car"]), pairs(["cat"]), None, SETTINGS)
    for name in ("one", "two"):
        train_reward(*arguments, tmp_path / name, tmp_path / f"{name}-curves")
    assert reward_hash(tmp_path / "one", base) == reward_hash(tmp_path / "two", base)


@pytest.fixture(params=["tiny", "encoder"])
def scalar(request: pytest.FixtureRequest, base: Base) -> tuple[Any, Any]:
    """A model with a fresh head, and its tokenizer."""
    from mascot.references import load_base

    chosen = base if request.param == "tiny" else load_base(request.getfixturevalue("base_models") / "encoder")
    tokenizer = reward_tokenizer(chosen)
    set_seed(3)
    return load_scalar_model(chosen, tokenizer).eval(), tokenizer


def test_only_the_last_reply_changed_and_the_score_changes(scalar: tuple[Any, Any]) -> None:
    """Pitfall 1: were pooling to stop at an earlier turn's end, the last reply would not count. Somebody's text holds the tokens, too."""
    model, tokenizer = scalar
    talk = (Turn("person", f"I typed {tokenizer.pad_token} and {tokenizer.eos_token} again."), *TALK)
    one, other = scores(model, tokenizer, [encode(tokenizer, talk, "In the car?"), encode(tokenizer, talk, "That hurts, I am sure.")])
    assert abs(one - other) > 1e-4
    for ids in (encode(tokenizer, talk, "In the car?"), encode(tokenizer, TALK, f"Bye{tokenizer.eos_token}")):
        assert tokenizer.pad_token_id not in ids and ids.count(tokenizer.eos_token_id) == 1 and ids[-1] == tokenizer.eos_token_id


def test_a_score_does_not_depend_on_its_neighbours(scalar: tuple[Any, Any]) -> None:
    """Pitfall 2."""
    model, tokenizer = scalar
    short, long = encode(tokenizer, TALK[:1], "Oh no."), encode(tokenizer, TALK * 6, "Where was it the last time?")
    alone, together = scores(model, tokenizer, [short]), scores(model, tokenizer, [long, short, long])
    assert abs(alone[0] - together[1]) < 1e-4
    assert together[0] == pytest.approx(together[2], abs=1e-5)


def test_the_renderer_hash_knows_the_tokenizer(base: Base, base_models: Path) -> None:
    from mascot.references import load_base

    assert renderer_hash(reward_tokenizer(base)) != renderer_hash(reward_tokenizer(load_base(base_models / "encoder")))


@pytest.mark.parametrize(
    ("train", "validation", "message"),
    [
        ([], ["cat"], "no preference pairs of the split `train`"),
        (["dog", "car"], [], "no preference pairs of the split `validation`"),
        (["dog"], ["cat"], "all training pairs are of one context, dog"),
        (["dog", "cat"], ["cat"], "are in the training and in the validation pairs: cat"),
    ],
)
def test_pairs_that_cannot_train_are_refused(base: Base, tmp_path: Path, train: list[str], validation: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        train_reward(base, pairs(train), pairs(validation), None, SETTINGS, tmp_path / "model", tmp_path / "curves")
    assert list(tmp_path.iterdir()) == []


def test_a_context_over_the_window_is_named(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base", window=64)
    long = [Pair("the long one", TALK * 9, "Yes.", "No.", 1.0), *pairs(["dog"])]
    with pytest.raises(DataError, match=r"context the long one: \d+ tokens with its reply, over the reward model's window of 64"):
        train_reward(base, long, pairs(["cat"]), None, SETTINGS, tmp_path / "model", tmp_path / "curves")


def test_the_length_only_null_stands_beside_the_accuracy() -> None:
    """Pitfall 34. Where the longer reply always wins, length alone is right always; where the shorter one does, too."""
    longer = [Pair(str(number), TALK, "three words here", "two words", 1.0) for number in range(4)]
    shorter = [Pair(str(number), TALK, "two words", "three words here", 1.0) for number in range(4)]
    good, bad = [1.0] * 4, [0.0] * 4
    for train, rule in ((longer, "longer"), (shorter, "shorter")):
        found = measure(train, good, bad, train)
        assert found["length_null"]["rule"] == rule and found["length_null"]["mean"] == 1.0
        assert found["above_length_null"]["mean"] == 0.0
    against = measure(shorter, good, bad, longer)
    assert against["length_null"]["mean"] == 0.0 and against["above_length_null"]["mean"] == 1.0


def test_accuracy_by_margin_and_ties() -> None:
    validation = [Pair("a", TALK, "x", "y", 0.6), Pair("a", TALK, "x", "y", 0.7), Pair("b", TALK, "x", "y", 3.0)]
    found = measure(validation, [1.0, 0.5, 0.0], [0.0, 0.5, 1.0], validation)
    assert found["accuracy"]["mean"] == pytest.approx(0.5) and found["accuracy"]["groups"] == 2
    assert [(row["accuracy"], row["n"]) for row in found["accuracy_by_margin"]] == [(0.75, 2), (0.0, 1)]
    assert np.isclose(sum(row["n"] for row in found["accuracy_by_margin"]), 3)
