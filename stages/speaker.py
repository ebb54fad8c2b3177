"""Train a Speaker's adapter by GRPO on its persona's reward: models/speaker/<domain>/<persona>.

As in the paper: the persona's reward model, a small format and a small conciseness reward. Ours: a relevance reward (weight 0 in the
`paper` profile), a lower bound of the length, and guards that stop a run which loses its senses. It starts from the SFT adapter and
only trains; `alignment` measures.

    python -m stages speaker support-anchor
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mascot.contexts import sample
from mascot.dialogue.render import speaker_messages
from mascot.dialogue.types import CONTEXT_SCHEMA, contexts_from_frame
from mascot.errors import DataError
from mascot.files import content_hash, read_parquet, write_json
from mascot.params import SamplingParams, Speaker, read_section
from mascot.personas import load_persona
from mascot.training.launch import LaunchName, launched
from mascot.training.lora import Lora
from mascot.yamlfiles import Strict


class Weights(Strict):
    """What each reward counts in the sum; see `mascot.rewards.functions`."""

    persona: float = Field(ge=0)
    format: float = Field(ge=0)
    conciseness: float = Field(ge=0)
    relevance: float = Field(ge=0)


class Words(Strict):
    """The band of words in which a reply is concise."""

    low: int = Field(ge=0)
    high: int = Field(ge=1)

    def model_post_init(self, context: object) -> None:
        if self.low > self.high:
            raise ValueError(f"`low` {self.low} is above `high` {self.high}")


class GuardParams(Strict):
    """See `mascot.training.guards.GuardLimits`."""

    entropy_floor: float = Field(ge=0)
    distinct_2_margin: float = Field(gt=0, le=1)
    similarity_margin: float = Field(gt=0, le=2)
    patience: int = Field(ge=1)


class Params(Strict):
    """`contexts` of the training split; `init`: the SFT adapter or a fresh one of the shape `lora`; the rest is as `GrpoSettings`.

    `launch` names a file in `launch/`: the processes to train in.
    """

    launch: LaunchName
    init: Literal["sft", "base"]
    lora: Lora
    contexts: int = Field(ge=1)
    rollouts: int = Field(ge=1)
    prompts: int = Field(ge=1)
    group: int = Field(ge=2)
    updates: int = Field(ge=1)
    iterations: int = Field(ge=1)
    micro_batch: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    kl: float = Field(ge=0)
    clip: float = Field(gt=0)
    scale: Literal["group", "batch", "none"]
    aggregation: Literal["sum_then_normalize", "normalize_then_sum"]
    generation: Literal["transformers", "vllm"]
    sampling: SamplingParams
    weights: Weights
    words: Words
    guards: GuardParams
    seed: int


def run(instance: str) -> None:
    params = read_section(Params, "speaker")
    reward_base = read_section(str, "reward", "base")
    speaker = read_section(Speaker, "speakers", instance)
    persona = load_persona(speaker.card)
    path = Path("data/contexts") / f"{speaker.domain}.parquet"
    contexts = contexts_from_frame(read_parquet(path, f"contexts@{speaker.domain}", CONTEXT_SCHEMA))
    chosen = sample(contexts, {"train": params.contexts}, params.seed)
    if len(chosen) < params.prompts:
        raise DataError(f"{path}: {len(chosen)} training contexts, but a rollout takes {params.prompts}. Lower `speaker.prompts`.")
    if launched(params.launch, "speaker", instance):
        return

    from mascot.models import load_encoder, load_ends, load_tokenizer
    from mascot.references import load_base
    from mascot.rewards.functions import conciseness_reward, format_reward, persona_reward, reader, relevance_reward
    from mascot.rewards.model import RewardModel, reward_hash
    from mascot.training.grpo import GrpoSettings, Prompt, train_grpo
    from mascot.training.guards import GuardLimits, Guards

    base, scorer = load_base(Path("models/base/policy")), load_base(Path("models/base") / reward_base)
    encoder = load_base(Path("models/base/encoder"))
    reward = Path("models/reward") / speaker.domain / speaker.reward
    encode = load_encoder(encoder)
    pool = [context.turns for context in contexts if context.split == "train"]
    tokenizer, ends = load_tokenizer(base), load_ends(base)
    read = reader(tokenizer, ends, persona.name)
    weights = params.weights
    model = RewardModel(reward, scorer)
    for context in chosen:
        model.check_length(context.id, context.turns, params.sampling.max_tokens)
    rewards = {
        "persona": (persona_reward(read, model), weights.persona),
        "format": (format_reward(read, ends), weights.format),
        "conciseness": (conciseness_reward(read, params.words.low, params.words.high), weights.conciseness),
        "relevance": (relevance_reward(read, persona, encode, pool), weights.relevance),
    }

    def said(completion_ids: list[Any], turns: list[Any], **_: Any) -> list[str]:
        return [reply.text for reply in read(completion_ids, turns)]

    settled = [persona.model_dump(), params.words.model_dump(), params.guards.model_dump()]
    settings = GrpoSettings(**params.model_dump(include=set(GrpoSettings.__dataclass_fields__)), **params.sampling.model_dump())
    metrics = train_grpo(
        base,
        speaker.artifact("models/sft") if params.init == "sft" else None,
        params.lora,
        [Prompt(context.id, tuple(speaker_messages(persona, context.turns)), context.turns) for context in chosen],
        rewards,
        Guards(GuardLimits(**params.guards.model_dump()), said, encode),
        settings,
        [reward_hash(reward, scorer), encoder.identity, content_hash([asdict(turn) for turns in pool for turn in turns]), *settled],
        speaker.artifact("models/speaker"),
        speaker.artifact("metrics/speaker"),
    )
    if metrics:
        write_json(metrics, speaker.artifact("metrics/speaker", ".json"))
