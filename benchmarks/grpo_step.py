"""A GRPO run: ours against a bare TRL script with the same settings.

What is compared, in seconds for the same rollouts and updates, on `models/base/policy` with a fresh LoRA adapter:

- ours: `mascot.training.grpo.train_grpo`: guards that look at every reply and gradient, a checkpoint a rollout, curves, metrics;
- bare: `GRPOTrainer` with the same `GRPOConfig`, rewards and data, and nothing else: no guard, no checkpoint.

Loading models is not timed; each way is run twice, in turns, and the shorter time counts. Target: ours / bare <= 1.05. Needs
`dvc repro base` for both slots; takes about eight minutes on 2 cores.

    python benchmarks/grpo_step.py [--rollouts 2]
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOTrainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mascot.corpora.sample import load
from mascot.dialogue.render import speaker_messages
from mascot.dialogue.types import turns_to_rows
from mascot.models import load_encoder, load_ends, load_tokenizer
from mascot.personas import load_persona
from mascot.references import load_base
from mascot.rewards.functions import conciseness_reward, reader, relevance_reward
from mascot.training import grpo
from mascot.training.guards import GuardLimits, Guards
from mascot.training.lora import Lora

TARGET = 1.05
LORA = Lora(r=16, alpha=32, dropout=0.0, target_modules="all-linear")


class Clock(TrainerCallback):
    """Seconds from the first step to the last one's end."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.start = time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self.start


class TimedGuards(Guards, Clock):
    """Our guards, which also take the time."""

    def on_train_begin(self, *args: Any, **more: Any) -> None:
        Clock.on_train_begin(self)
        Guards.on_train_begin(self, *args, **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2, help="of 2 contexts with 4 replies each, for 2 updates")
    rollouts = parser.parse_args().rollouts

    base, persona = load_base(Path("models/base/policy")), load_persona(Path("data/personas/support/anchor.yaml"))
    contexts = [one for one in load(Path("data/sample/support"), "support") if one.split == "train"][:8]
    encode = load_encoder(load_base(Path("models/base/encoder")))
    read = reader(load_tokenizer(base), load_ends(base), persona.name)
    rewards: dict[str, Any] = {
        "conciseness": (conciseness_reward(read, 12, 28), 1.0),
        "relevance": (relevance_reward(read, persona, encode, [one.turns for one in contexts]), 1.0),
    }
    prompts = [grpo.Prompt(one.id, tuple(speaker_messages(persona, one.turns)), one.turns) for one in contexts]
    settings = grpo.GrpoSettings(
        rollouts=rollouts,
        prompts=2,
        group=4,
        updates=2,
        iterations=1,
        micro_batch=4,
        learning_rate=3e-4,
        kl=0.05,
        clip=0.2,
        scale="group",
        aggregation="sum_then_normalize",
        generation="transformers",
        max_tokens=40,
        temperature=0.9,
        top_k=0,
        top_p=1.0,
        min_p=0.05,
        seed=7,
    )

    def ours(folder: Path) -> float:
        os.environ["MASCOT_CACHE"] = str(folder / "cache")
        limits = GuardLimits(entropy_floor=0.0, distinct_2_margin=1.0, similarity_margin=2.0, patience=99)
        guards = TimedGuards(limits, lambda completion_ids, turns, **_: [one.text for one in read(completion_ids, turns)], encode)
        grpo.train_grpo(base, None, LORA, prompts, rewards, guards, settings, [], folder / "adapter", folder / "curves")
        return guards.seconds

    def bare(folder: Path) -> float:
        rows = [{"prompt": list(one.messages), "context_id": one.context_id, "turns": turns_to_rows(one.turns)} for one in prompts]
        arguments = grpo._arguments(settings, [weight for _, weight in rewards.values()], folder)
        arguments.save_strategy = "no"
        clock = Clock()
        GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(**base.load_arguments),
            reward_funcs=[function for function, _ in rewards.values()],
            args=arguments,
            train_dataset=Dataset.from_list(grpo._in_order(rows, settings)),
            processing_class=load_tokenizer(base),
            peft_config=LoraConfig(task_type="CAUSAL_LM", **LORA.arguments()),
            callbacks=[clock],
        ).train()
        return clock.seconds

    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for turn in range(2):
        for name, path in (("ours", ours), ("bare", bare)) if turn == 0 else (("bare", bare), ("ours", ours)):
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(path(Path(folder)))
    print(f"\n{rollouts} rollouts of 8 replies, {settings.steps} updates")
    for name, taken in seconds.items():
        print(f"{name:28}" + "".join(f"{one:>8.1f} s" for one in taken))
    print(f"\nours / bare (target <= {TARGET}){min(seconds['ours']) / min(seconds['bare']):>10.3f}")


if __name__ == "__main__":
    main()
