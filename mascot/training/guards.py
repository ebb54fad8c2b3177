"""Guards: reasons to stop a GRPO run, each with its step, its cause and what to do about it.

A gain of the reward proves nothing by itself: it has come with garbage text. The guards look at what goes wrong first.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mascot.diversity import distinct_n, similarity_across
from mascot.errors import ModelError

Cause = Literal["not_finite", "all_clipped", "entropy", "distinct_2", "similarity", "no_variance"]

_ADVICE: dict[Cause, str] = {
    "not_finite": "Lower `speaker.learning_rate`.",
    "all_clipped": "Raise `speaker.sampling.max_tokens`, or start from a policy that ends its replies (`speaker.init: sft`).",
    "entropy": "Raise `speaker.kl` or lower `speaker.learning_rate`; the policy is collapsing onto a few replies.",
    "distinct_2": "Raise `speaker.kl` or lower `speaker.learning_rate`; replies repeat each other's words.",
    "similarity": "Raise `speaker.weights.relevance` or `speaker.kl`; replies to different people become the same.",
    "no_variance": "Look at the rewards' curves: all samples of a context get the same reward, so nothing is learned.",
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
    """A guard stopped the run."""

    def __init__(self, cause: Cause, step: int, what: str) -> None:
        self.cause, self.step = cause, step
        super().__init__(f"stopped at step {step}: {what}. {_ADVICE[cause]}")

    distinct_2: float | None = None
    similarity: float | None = None


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
            said = self._texts(**columns)
            seen = {"distinct_2": distinct_n(said), "similarity": similarity_across(self._encode(said), context_id)}
            seen["words"] = sum(len(text.split()) for text in said) / len(said)
            for name, value in seen.items():
                if value is not None and log_metric:
                    log_metric(name, value)
            self._compare(trainer_state.global_step, seen["distinct_2"], seen["similarity"])
            return reward(context_id=context_id, trainer_state=trainer_state, log_metric=log_metric, **columns)

        return watched

    def checking(self, reward: Callable[..., list[float]]) -> Callable[..., list[float]]:
        """The same reward, whose every value must be finite: TRL would leave others out silently."""

        @functools.wraps(reward)
        def checked(*, trainer_state: Any, **columns: Any) -> list[float]:
            values = reward(trainer_state=trainer_state, **columns)
            if wrong := [value for value in values if not math.isfinite(value)]:
                name = getattr(reward, "__name__", "?")
                raise GuardError("not_finite", trainer_state.global_step, f"the reward `{name}` of {len(wrong)} replies is {wrong[0]}")
            return values

        return checked

    def _compare(self, step: int, distinct: float | None, similarity: float | None) -> None:
        if distinct is None:
            raise GuardError("distinct_2", step, "no reply has two words")
        first = self.start.setdefault("distinct_2", distinct)
        if first - distinct > self.limits.distinct_2_margin:
            raise GuardError("distinct_2", step, f"distinct-2 fell from {first:.2f} to {distinct:.2f}")
        if similarity is None:
            return
        first = self.start.setdefault("similarity", similarity)
        if similarity - first > self.limits.similarity_margin:
            raise GuardError("similarity", step, f"similarity of replies to different contexts rose from {first:.2f} to {similarity:.2f}")

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
                raise GuardError("not_finite", state.global_step, f"the gradient of {name} is not finite")

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        known = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        step = state.global_step
        for name in ("loss", "grad_norm"):
            if not math.isfinite(known.get(name, 0.0)):
                raise GuardError("not_finite", step, f"the {name} is {known[name]}")
        if "entropy" in known and known["entropy"] < self.limits.entropy_floor:
            raise GuardError("entropy", step, f"the entropy is {known['entropy']:.3f} nats a token, under {self.limits.entropy_floor}")
        if "completions/clipped_ratio" in known:
            self._clipped = self._clipped + 1 if known["completions/clipped_ratio"] >= 1 else 0
            if self._clipped >= self.limits.patience:
                raise GuardError("all_clipped", step, f"every reply hit the length limit in {self._clipped} rollouts running")
        if "frac_reward_zero_std" in known:
            self._flat = self._flat + 1 if known["frac_reward_zero_std"] >= 1 else 0
            if self._flat >= self.limits.patience:
                raise GuardError("no_variance", step, f"rewards did not differ within any context in {self._flat} rollouts running")
