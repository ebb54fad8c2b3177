"""Guards: reasons to stop a GRPO run, each with its step, its cause and what to do about it.

A gain of the reward proves nothing by itself: it has come with garbage text. The guards look at what goes wrong first.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from accelerate.utils import gather_object
from numpy.typing import NDArray
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mascot.diversity import distinct_n, similarity_across
from mascot.errors import ModelError

Cause = Literal["not_finite", "bad_reward", "empty", "all_clipped", "entropy", "distinct_2", "similarity", "no_variance"]

_ADVICE: dict[Cause, str] = {
    "not_finite": "Lower `speaker.learning_rate`.",
    "bad_reward": "Look at what this reward function was given; the reward model may be broken (run its stage again).",
    "empty": "Start from a policy that answers (`speaker.init: sft`), or raise `speaker.sampling.max_tokens`.",
    "all_clipped": "Raise `speaker.sampling.max_tokens`, or start from a policy that ends its replies (`speaker.init: sft`).",
    "entropy": "Raise `speaker.kl` or lower `speaker.learning_rate`; the policy is collapsing onto a few replies.",
    "distinct_2": "Raise `speaker.kl` or lower `speaker.learning_rate`; replies repeat each other's words.",
    "similarity": "Raise `speaker.weights.relevance` or `speaker.kl`; replies to different people become the same.",
    "no_variance": "Raise `speaker.sampling.temperature` or a weight in `speaker.weights`; where all replies to a context get the same "
    "reward, nothing is learned.",
}


@dataclass(frozen=True)
class GuardLimits:
    """When to stop: entropy (nats a token) under `entropy_floor`; distinct-2 or similarity across contexts (cosine) worse than in the
    first rollout by more than the margin; every completion clipped, or no context with differing rewards, in `patience` rollouts running.
    """

    entropy_floor: float
    distinct_2_margin: float
    similarity_margin: float
    patience: int


class GuardError(ModelError):
    """A guard stopped the run at `step`. The policy of step `suspect` and later ones are not to be trusted."""

    def __init__(self, cause: Cause, step: int, what: str, suspect: int) -> None:
        self.cause, self.step, self.suspect = cause, step, suspect
        super().__init__(f"stopped at step {step}: {what}. {_ADVICE[cause]}")


class Guards(TrainerCallback):
    """Watches a run: as a callback its logs and gradients, and through `watching` its replies."""

    def __init__(self, limits: GuardLimits, texts: Callable[..., list[str]], encode: Callable[[Sequence[str]], NDArray[Any]]) -> None:
        self.limits, self._texts, self._encode = limits, texts, encode
        self.start: dict[str, float] = {}
        self._clipped = self._flat = 0

    def watching(self, reward: Callable[..., list[float]]) -> Callable[..., list[float]]:
        """The same reward, whose every rollout is looked at first: TRL shows completions to its reward functions alone."""

        @functools.wraps(reward)
        def watched(*, context_id: Sequence[str], trainer_state: Any, log_metric: Any = None, **columns: Any) -> list[float]:
            # The replies of all processes: what one of them sees alone would be another measure, and they must stop together.
            said, context_id_of_all = gather_object(self._texts(**columns)), gather_object(list(context_id))
            seen = {"distinct_2": distinct_n(said), "similarity": similarity_across(self._encode(said), context_id_of_all)}
            seen["words"] = sum(len(text.split()) for text in said) / len(said)
            for name, value in seen.items():
                if value is not None and log_metric:
                    log_metric(name, value)
            self._compare(trainer_state.global_step, seen["distinct_2"], seen["similarity"])
            return reward(context_id=context_id, trainer_state=trainer_state, log_metric=log_metric, **columns)

        return watched

    def checking(self, name: str, reward: Callable[..., list[float]]) -> Callable[..., list[float]]:
        """The same reward, logged as `name`, whose every value must be finite: TRL would leave others out silently."""

        @functools.wraps(reward)
        def checked(*, trainer_state: Any, **columns: Any) -> list[float]:
            values = reward(trainer_state=trainer_state, **columns)
            if wrong := [value for value in values if not math.isfinite(value)]:
                step = trainer_state.global_step
                raise GuardError("bad_reward", step, f"the reward `{name}` of {len(wrong)} replies is {wrong[0]}", step)
            return values

        checked.__name__ = name
        return checked

    def _compare(self, step: int, distinct: float | None, similarity: float | None) -> None:
        if distinct is None:
            raise GuardError("empty", step, "no reply has two words", step)
        first = self.start.setdefault("distinct_2", distinct)
        if first - distinct > self.limits.distinct_2_margin:
            raise GuardError("distinct_2", step, f"distinct-2 fell from {first:.2f} to {distinct:.2f}", step)
        if similarity is None:
            return
        first = self.start.setdefault("similarity", similarity)
        if similarity - first > self.limits.similarity_margin:
            what = f"similarity of replies to different contexts rose from {first:.2f} to {similarity:.2f}"
            raise GuardError("similarity", step, what, step)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A resumed run is compared with the start of the whole."""
        for logs in state.log_history:
            self.on_log(args, state, control, logs)
            for name in ("distinct_2", "similarity"):
                if isinstance(logs.get(name), float):
                    self.start.setdefault(name, logs[name])

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """Before the weights are touched: no update with a gradient that is not finite."""
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                raise GuardError("not_finite", state.global_step, f"the gradient of {name} is not finite", state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any) -> None:
        """Before anything is saved or sampled: no weights that are not finite."""
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and not torch.isfinite(parameter).all():
                raise GuardError("not_finite", state.global_step, f"{name} is not finite after the update", state.global_step)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        known = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        step = int(known.get("step", state.global_step))
        for name in ("loss", "grad_norm"):
            if not math.isfinite(known.get(name, 0.0)):
                raise GuardError("not_finite", step, f"the {name} is {known[name]}", step)
        # What is logged with the first update after a rollout is of replies that were drawn one step earlier.
        drawn = step - 1
        if "entropy" in known and known["entropy"] < self.limits.entropy_floor:
            what = f"the entropy is {known['entropy']:.3f} nats a token, under {self.limits.entropy_floor}"
            raise GuardError("entropy", step, what, drawn)
        if "completions/clipped_ratio" in known:
            self._clipped = self._clipped + 1 if known["completions/clipped_ratio"] >= 1 else 0
            if self._clipped >= self.limits.patience:
                raise GuardError("all_clipped", step, f"every reply hit the length limit in {self._clipped} rollouts running", drawn)
        if "frac_reward_zero_std" in known:
            self._flat = self._flat + 1 if known["frac_reward_zero_std"] >= 1 else 0
            if self._flat >= self.limits.patience:
                raise GuardError("no_variance", step, f"rewards did not differ within any context in {self._flat} rollouts running", drawn)
