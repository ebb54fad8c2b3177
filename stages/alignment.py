"""Measure Speakers on test contexts: replies of base, SFT and GRPO, judged: data/alignment/<domain>.parquet.

All three answer the same contexts with the same random draws. The evaluating judge, which trained nothing, scores them; differences
are paired by context, with bootstrap intervals and Holm's correction over all Speakers. The paper reports means alone.

    python -m stages alignment support
"""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import Field

from mascot.contexts import sample
from mascot.dialogue.checks import check_reply
from mascot.dialogue.render import speaker_messages
from mascot.dialogue.types import CONTEXT_SCHEMA, TURNS_DTYPE, Context, contexts_from_frame, turns_to_rows
from mascot.engines.generate import generate
from mascot.engines.types import Adapter, Completion, Request, Sampling
from mascot.errors import DataError
from mascot.files import read_parquet, write_json, write_parquet
from mascot.journal import Journal
from mascot.judges.judge import judge
from mascot.judges.types import Item
from mascot.params import SamplingParams, Speaker, read_section
from mascot.personas import Persona, load_persona
from mascot.rubrics import load_rubric
from mascot.yamlfiles import Strict

FOLDERS = {"sft": "models/sft", "grpo": "models/speaker"}
"""Where the systems' adapters are; the base has none."""

SCHEMA = pl.Schema(
    {
        "persona": pl.String(),
        "system": pl.String(),
        "context_id": pl.String(),
        "split": pl.String(),
        "turns": TURNS_DTYPE,
        "sample": pl.Int32(),
        "text": pl.String(),
        "finish_reason": pl.String(),
        "raw": pl.String(),
        "score": pl.Float64(),
        "criteria": pl.List(pl.Struct({"criterion": pl.String, "score": pl.Float64, "value": pl.Float64})),
        "fault": pl.String(),
        "recognised": pl.String(),
    }
)


class Margins(Strict):
    """How much worse than SFT a GRPO Speaker may be, by the mean difference, and still count as sane.

    `relevance` and `wellformedness` in points of the score (1-5), `distinct_2` as a share, `words` either way.
    """

    relevance: float = Field(ge=0)
    wellformedness: float = Field(ge=0)
    distinct_2: float = Field(ge=0)
    words: float = Field(ge=0)


class Params(Strict):
    """`replies` samples for each of so many test `contexts` of each split, or all that there are."""

    engine: Literal["transformers", "http"]
    contexts: dict[Literal["test", "out_of_domain"], Annotated[int, Field(ge=1)]] = Field(min_length=1)
    replies: int = Field(ge=1)
    sampling: SamplingParams
    batch_size: int = Field(ge=1)
    seed: int
    margins: Margins


def run(instance: str) -> None:
    params = read_section(Params, "alignment")
    everyone = read_section(dict[str, Speaker], "speakers")
    roster = {key: speaker for key, speaker in everyone.items() if speaker.domain == instance}
    personas = {speaker.persona: load_persona(speaker.card) for speaker in roster.values()}
    path = Path("data/contexts") / f"{instance}.parquet"
    contexts = contexts_from_frame(read_parquet(path, f"contexts@{instance}", CONTEXT_SCHEMA))
    chosen = sample(contexts, params.contexts, params.seed)
    if len(chosen) < 2:
        raise DataError(
            f"{path}: {len(chosen)} contexts in the splits {', '.join(params.contexts)}; at least two are needed; see `alignment.contexts`."
        )

    from mascot.adapters import adapter_hash
    from mascot.alignment import SYSTEMS, Answer, compare, overall, with_wellformedness
    from mascot.judges.classifier import ClassifierJudge, EvaluationLines
    from mascot.models import load_encoder
    from mascot.references import load_base

    policy = Path("models/base/policy")
    base, journal = load_base(policy), Journal()
    engine = import_module(f"mascot.engines.{params.engine}").open_engine(policy, params.batch_size)
    completions: dict[str, list[Completion]] = {}
    for key, speaker in roster.items():
        for system in SYSTEMS:
            adapter = None
            if system in FOLDERS:
                folder = speaker.artifact(FOLDERS[system])
                adapter = Adapter(f"{key}-{system}", folder, adapter_hash(folder, base))
            # One persona and system at a time: so batches, and with them the random draws, are the same for every system.
            requests = _requests(speaker.persona, system, personas[speaker.persona], chosen, adapter, params)
            completions |= generate(engine, requests, journal, f"alignment {key} {system}")

    rubric = with_wellformedness(load_rubric(Path("data/rubrics") / f"{instance}.yaml"))
    lines = EvaluationLines(Path("data/evaluation") / instance)
    names = {persona.name: key for key, persona in personas.items()}
    evaluating = ClassifierJudge(rubric, lines, names, policy, [context.turns for context in contexts if context.split == "train"])
    answers, rows = [], []
    for persona_key, persona in personas.items():
        said = [
            (
                system,
                context,
                number,
                completion,
                check_reply(completion.text, persona.name, sorted({turn.speaker for turn in context.turns})),
            )
            for system in SYSTEMS
            for context in chosen
            for number, completion in enumerate(completions[f"{persona_key} {system} {context.id}"])
        ]
        verdicts = judge(
            evaluating, persona, [Item(context.turns, reply.text) for _, context, _, _, reply in said], journal, f"alignment {persona_key}"
        )
        recognised = evaluating.recognise([reply.text for *_, reply in said], list(personas))
        for (system, context, number, completion, reply), verdict, voice in zip(said, verdicts, recognised, strict=True):
            answers.append(Answer(persona_key, system, context.id, reply.text, verdict, voice))
            rows.append(
                {
                    "persona": persona_key,
                    "system": system,
                    "context_id": context.id,
                    "split": context.split,
                    "turns": turns_to_rows(context.turns),
                    "sample": number,
                    "text": reply.text,
                    "finish_reason": completion.finish_reason,
                    "raw": completion.text,
                    "score": overall(verdict, rubric),
                    "criteria": [{"criterion": one.criterion, "score": one.score, "value": one.value} for one in verdict.scores],
                    "fault": verdict.fault,
                    "recognised": voice,
                }
            )
    encode = load_encoder(load_base(Path("models/base/encoder")))
    metrics = compare(answers, rubric, encode, len(everyone), params.margins.model_dump())
    write_parquet(pl.DataFrame(rows, schema=SCHEMA), Path("data/alignment") / f"{instance}.parquet")
    write_json(metrics, Path("metrics/alignment") / f"{instance}.json")


def _requests(key: str, system: str, persona: Persona, contexts: list[Context], adapter: Adapter | None, params: Params) -> list[Request]:
    return [
        Request(
            id=f"{key} {system} {context.id}",
            messages=tuple(speaker_messages(persona, context.turns)),
            sampling=Sampling(**params.sampling.model_dump()),
            seed=params.seed,
            n=params.replies,
            adapter=adapter,
        )
        for context in contexts
    ]
