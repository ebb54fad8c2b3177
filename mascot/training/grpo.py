"""A Speaker's policy by GRPO: TRL's `GRPOTrainer` on a LoRA adapter, with the KL measured against where the adapter started.

A rollout of several contexts is sampled together and used for several optimizer steps (`updates`), with the clipped ratio between
them. The loss is averaged over all tokens of a batch, as DAPO does and as TRL defaults to; the paper does not publish its own.
"""

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from peft import LoraConfig, PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, set_seed
from transformers.trainer_callback import TrainerState
from trl import GRPOConfig, GRPOTrainer

from mascot.adapters import adapter_hash, save_adapter, write_manifest
from mascot.device import precision
from mascot.dialogue.types import Message, Turn, turns_to_rows
from mascot.errors import ConfigurationError, DataError, ModelError
from mascot.files import cache_folder, content_hash, file_hash, writing
from mascot.models import load_tokenizer, prompt_ids
from mascot.progress import progress
from mascot.references import Base, loading
from mascot.training.curves import ShowProgress, write_curves
from mascot.training.guards import GuardError, Guards
from mascot.training.launch import is_main_process, process_count, share
from mascot.training.lora import Lora
from mascot.training.trainer import shared_arguments, silence

Reward = Callable[..., list[float]]

_MEASURED = ("reward", "kl", "entropy", "distinct_2", "similarity", "words", "completions/clipped_ratio")


@dataclass(frozen=True)
class Prompt:
    """A context to answer: its messages, and its turns for the rewards."""

    context_id: str
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class GrpoSettings:
    """One rollout is `prompts` contexts with `group` replies each; it is used for `updates` optimizer steps, `iterations` times over.

    `micro_batch` replies are differentiated at once in a process. `kl` is the coefficient of the KL to the start (0: not measured),
    `clip` the width of the trust region. `scale`: advantages by the deviation of the group, of the batch, or not at all.
    `aggregation`: rewards are summed and then normalised (the paper's GRPO), or normalised one by one and then summed (GDPO).
    """

    rollouts: int
    prompts: int
    group: int
    updates: int
    iterations: int
    micro_batch: int
    learning_rate: float
    kl: float
    clip: float
    scale: Literal["group", "batch", "none"]
    aggregation: Literal["sum_then_normalize", "normalize_then_sum"]
    generation: Literal["transformers", "vllm"]
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int

    @property
    def steps(self) -> int:
        """Optimizer steps in all."""
        return self.rollouts * self.updates * self.iterations


def train_grpo(
    base: Base,
    start: Path | None,
    lora: Lora,
    prompts: Sequence[Prompt],
    rewards: Mapping[str, tuple[Reward, float]],
    guards: Guards,
    settings: GrpoSettings,
    inputs: Any,
    out: Path,
    curves: Path,
    rollout: Callable[..., Any] | None = None,
) -> dict[str, Any] | None:
    """Train an adapter on the rewards and save it to `out`.

    Args:
        start: the adapter to go on from, which is also what the KL is measured against; None for a fresh one of the shape `lora`.
        rewards: functions as in `mascot.rewards.functions`, each with its weight; each is logged on its own, at weight 0 too.
        inputs: JSON-like: what determines the result beside the other arguments (the reward model's hash, say). A run that was
            interrupted goes on from its last checkpoint if and only if all of this is the same.
        rollout: TRL's `rollout_func`, in place of sampling from the policy.

    Returns metrics (None in a process that does not write): each measure in the first and in the last rollout.

    Raises:
        GuardError: see `mascot.training.guards`; names the folder of the last good adapter.
        DataError: a context over the model's window.
    """
    set_seed(settings.seed)
    tokenizer: Any = load_tokenizer(base)
    with loading(base):
        policy: Any = AutoModelForCausalLM.from_pretrained(**base.load_arguments, dtype=precision())
    _check_lengths(prompts, tokenizer, policy.config.max_position_embeddings, settings, base)
    rows = [{"prompt": list(one.messages), "context_id": one.context_id, "turns": turns_to_rows(one.turns)} for one in prompts]
    weights = {name: weight for name, (_, weight) in rewards.items()}
    key = content_hash(
        [base.identity, start and adapter_hash(start, base), lora.model_dump(), rows, weights, asdict(settings), inputs, _code()]
    )
    if start:
        policy = PeftModel.from_pretrained(policy, str(start), is_trainable=True)
    checkpoints = cache_folder() / "checkpoints" / key
    functions: Any = [guards.checking(name, function) for name, (function, _) in rewards.items()]
    functions[0] = guards.watching(functions[0])
    with progress("speaker", settings.steps, "steps") as shown:
        trainer = GRPOTrainer(
            policy,
            reward_funcs=functions,
            args=_arguments(settings, list(weights.values()), checkpoints),
            train_dataset=Dataset.from_list(_in_order(rows, settings)),
            processing_class=tokenizer,
            peft_config=None if start else LoraConfig(task_type="CAUSAL_LM", **lora.arguments()),
            callbacks=[guards, ShowProgress(shown)],
            rollout_func=rollout,
        )
        silence(trainer)
        if last := _last_checkpoint(checkpoints):
            # The trainer restores the optimizer and the reference adapter, and passes over the policy's own when there are two.
            set_peft_model_state_dict(trainer.model, load_file(last / "adapter_model.safetensors"), adapter_name="default")
        try:
            trainer.train(resume_from_checkpoint=str(last) if last else None)
        except GuardError as error:
            raise ModelError(f"{out}: {error} {_keep_good(checkpoints, error.suspect, base)}") from error
        except RuntimeError as error:
            if "probability tensor" not in str(error):
                raise
            found = GuardError("not_finite", step := trainer.state.global_step, "the policy's probabilities are not finite", step)
            raise ModelError(f"{out}: {found} {_keep_good(checkpoints, step, base)}") from found
    if not is_main_process():
        return None
    write_curves(trainer.state.log_history, curves)
    with writing(out) as folder:
        save_adapter(trainer.model, folder, base)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return _metrics(trainer.state.log_history, settings, list(weights))


def _last_checkpoint(folder: Path) -> Path | None:
    """The last whole checkpoint: one that was being written when the run was killed has no readable state, and is removed."""
    found = None
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=_step_of):
        try:
            TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
            found = checkpoint
        except (OSError, ValueError, TypeError):
            if is_main_process():
                shutil.rmtree(checkpoint, ignore_errors=True)
    return found


def _keep_good(folder: Path, suspect: int, base: Base) -> str:
    """Keep the last checkpoint from before step `suspect` as an adapter that can be used, and say where it is."""
    good = None
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=_step_of):
        if _step_of(checkpoint) < suspect:
            good = checkpoint
        elif is_main_process():
            shutil.rmtree(checkpoint, ignore_errors=True)
    if good is None:
        return "No adapter had been kept yet."
    write_manifest(good, base)
    return f"The last good adapter is in {good}."


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _in_order(rows: Sequence[dict[str, Any]], settings: GrpoSettings) -> list[dict[str, Any]]:
    """The contexts of all rollouts in the order of their use, shuffled anew each time all were used.

    The trainer's own shuffling is off: on resuming, it would begin again with the first epoch's order.
    """
    drawn, ordered = random.Random(settings.seed), []
    while len(ordered) < settings.rollouts * settings.prompts:
        ordered += drawn.sample(rows, len(rows))
    return ordered[: settings.rollouts * settings.prompts]


def _arguments(settings: GrpoSettings, weights: list[float], checkpoints: Path) -> GRPOConfig:
    sequences = share(settings.prompts * settings.group, "speaker.prompts * speaker.group")
    micro_batch = max(1, min(settings.micro_batch, sequences // settings.updates))
    if sequences % (settings.updates * micro_batch):
        raise ConfigurationError(
            f"params `speaker`: a rollout of {sequences} replies a process cannot be cut into {settings.updates} updates "
            f"of micro batches of {micro_batch}; change `prompts`, `group`, `updates` or `micro_batch`."
        )
    arguments = shared_arguments(settings.seed, settings.learning_rate)
    arguments |= {"save_strategy": "steps", "save_steps": settings.updates * settings.iterations, "save_total_limit": 2}
    return GRPOConfig(
        output_dir=str(checkpoints),
        max_steps=settings.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=sequences // (settings.updates * micro_batch),
        steps_per_generation=sequences // micro_batch,
        num_generations=settings.group,
        num_iterations=settings.iterations,
        max_completion_length=settings.max_tokens,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        beta=settings.kl,
        epsilon=settings.clip,
        scale_rewards=settings.scale,
        multi_objective_aggregation=settings.aggregation,
        reward_weights=weights,
        chat_template_kwargs={"enable_thinking": False},
        use_vllm=settings.generation == "vllm",
        vllm_mode="colocate",
        lr_scheduler_type="constant",
        loss_type="dapo",
        shuffle_dataset=False,
        **arguments,
    )


def _check_lengths(prompts: Sequence[Prompt], tokenizer: Any, window: int, settings: GrpoSettings, base: Base) -> None:
    for prompt in prompts:
        length = len(prompt_ids(tokenizer, prompt.messages))
        if length + settings.max_tokens > window:
            raise DataError(
                f"context {prompt.context_id}: the prompt has {length} tokens and the reply may have {settings.max_tokens}, but the window "
                f"of {base.reference} is {window}. Shorten this context or lower `speaker.sampling.max_tokens`."
            )


def _code() -> Any:
    """What of the program determines a run: this package's training code and the libraries'."""
    root = Path(__file__).parent.parent
    files = [
        *root.glob("training/*.py"),
        *root.glob("rewards/*.py"),
        *root.glob("dialogue/**/*.*"),
        root / "diversity.py",
        root / "models.py",
    ]
    own = {path.relative_to(root).as_posix(): file_hash(path) for path in sorted(files) if path.suffix in (".py", ".txt")}
    return [own, [version(name) for name in ("torch", "transformers", "trl", "peft")], process_count(), str(precision())]


def _metrics(history: Sequence[Mapping[str, Any]], settings: GrpoSettings, names: Sequence[str]) -> dict[str, Any]:
    """Each measure in the first and the last step that logged it; null for what was not measured (the KL at `kl: 0`)."""

    def ends(name: str) -> dict[str, float] | None:
        values = [logs[name] for logs in history if isinstance(logs.get(name), int | float)]
        return {"first": values[0], "last": values[-1]} if values else None

    by_group = settings.scale != "batch" and settings.aggregation == "sum_then_normalize"
    rolled = [logs for logs in history if "frac_reward_zero_std" in logs]
    tied = [logs["frac_reward_zero_std"] for logs in rolled]
    return {
        **{name.replace("completions/", ""): ends(name) if name != "kl" or settings.kl else None for name in _MEASURED},
        "rewards": {name: ends(f"rewards/{name}/mean") for name in names},
        "tied_groups": sum(tied) / len(tied) if tied and by_group else None,
        "rollouts": len(rolled),
        "replies": settings.rollouts * settings.prompts * settings.group,
        "steps": settings.steps,
    }
