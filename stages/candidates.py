"""Sample K replies a context from a Speaker's policy: data/candidates/<domain>/<persona>.parquet.

The paper samples K = 8 (its `paper` profile does too). `init: sft` samples from the SFT adapter, `base` from the bare model.
Finished batches are kept in the journal: a killed run goes on where it was.

    python -m stages candidates support-anchor
"""

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import Field

from mascot.contexts import sample
from mascot.dialogue.checks import check_reply, same_text
from mascot.dialogue.render import speaker_messages
from mascot.dialogue.types import CANDIDATE_SCHEMA, CONTEXT_SCHEMA, Context, contexts_from_frame, turns_to_rows
from mascot.engines.generate import generate
from mascot.engines.types import Adapter, Completion, Request, Sampling
from mascot.errors import DataError
from mascot.files import read_parquet, write_json, write_parquet
from mascot.journal import Journal
from mascot.params import SamplingParams, Speaker, read_section
from mascot.personas import Persona, load_persona
from mascot.references import load_base
from mascot.yamlfiles import Strict

SCHEMA = pl.Schema(
    {**CANDIDATE_SCHEMA, "policy": pl.String(), "flags": pl.List(pl.String()), "finish_reason": pl.String(), "raw": pl.String()}
)


class Params(Strict):
    """`k` samples for each of so many `contexts` of each split, or all that there are.

    `from_base` of the `k` come from the bare base although `init` is `sft` (ours; 0 in the `paper` profile): replies in the assistant's
    own voice, so that a reward model learns what sets the persona apart. `batch_size` sequences are decoded together in process.
    """

    engine: Literal["transformers", "http"]
    init: Literal["sft", "base"]
    k: int = Field(ge=2)
    from_base: int = Field(ge=0)
    contexts: dict[Literal["train", "validation"], Annotated[int, Field(ge=1)]] = Field(min_length=1)
    sampling: SamplingParams
    batch_size: int = Field(ge=1)
    seed: int

    def model_post_init(self, context: object) -> None:
        if self.from_base >= self.k:
            raise ValueError(f"`from_base` {self.from_base} must be under `k` {self.k}: the rest comes from the policy `init`")
        if self.from_base and self.init == "base":
            raise ValueError("`from_base` must be 0 with `init: base`: all replies come from there")


def run(instance: str) -> None:
    params = read_section(Params, "candidates")
    speaker = read_section(Speaker, "speakers", instance)
    persona = load_persona(speaker.card)
    path = Path("data/contexts") / f"{speaker.domain}.parquet"
    contexts = sample(contexts_from_frame(read_parquet(path, f"contexts@{speaker.domain}", CONTEXT_SCHEMA)), params.contexts, params.seed)
    if not contexts:
        raise DataError(f"{path}: no contexts in the splits {', '.join(params.contexts)}. Choose others in `candidates.contexts`.")

    counts = {params.init: params.k - params.from_base, "base": params.from_base} if params.init == "sft" else {"base": params.k}
    policy = Path("models/base/policy")
    adapter = None
    if params.init == "sft":
        from mascot.adapters import adapter_hash

        folder = speaker.artifact("models/sft")
        adapter = Adapter(instance, folder, adapter_hash(folder, load_base(policy)))
    engine = import_module(f"mascot.engines.{params.engine}").open_engine(policy, params.batch_size)
    requests = [
        Request(
            id=f"{context.id} {policy_name}",
            messages=tuple(speaker_messages(persona, context.turns)),
            sampling=Sampling(**params.sampling.model_dump()),
            seed=params.seed,
            n=n,
            adapter=adapter if policy_name == params.init else None,
        )
        for context in contexts
        for policy_name, n in counts.items()
        if n
    ]
    answers = generate(engine, requests, Journal(), f"candidates {instance}")
    rows = []
    for context in contexts:
        completions = [(name, one) for name in counts for one in answers.get(f"{context.id} {name}", [])]
        rows += _candidates(context, persona, completions)
    write_parquet(pl.DataFrame(rows, schema=SCHEMA), speaker.artifact("data/candidates", ".parquet"))
    write_json(_metrics(rows), speaker.artifact("metrics/candidates", ".json"))


def _candidates(context: Context, persona: Persona, completions: list[tuple[str, Completion]]) -> list[dict[str, Any]]:
    """One row a sample. `status`: ok, empty (nothing usable was said), or duplicate (of an earlier sample of this context).

    Args:
        completions: each with the name of the policy that it was drawn from.
    """
    others = {turn.speaker for turn in context.turns}
    seen: set[str] = set()
    rows = []
    for number, (policy, completion) in enumerate(completions):
        reply = check_reply(completion.text, persona.name, sorted(others))
        same = same_text(reply.text)
        status = "empty" if not same else "duplicate" if same in seen else "ok"
        seen.add(same)
        rows.append(
            {
                "context_id": context.id,
                "split": context.split,
                "turns": turns_to_rows(context.turns),
                "sample": number,
                "text": reply.text,
                "status": status,
                "policy": policy,
                "flags": list(reply.flags),
                "finish_reason": completion.finish_reason,
                "raw": completion.text,
            }
        )
    return rows


def _metrics(rows: list[dict[str, Any]]) -> dict[str, Any]:
    statuses, flags = Counter(row["status"] for row in rows), Counter(flag for row in rows for flag in row["flags"])
    return {
        "contexts": len({row["context_id"] for row in rows}),
        "candidates": len(rows),
        "status": {status: statuses[status] for status in ("ok", "empty", "duplicate")},
        "flags": {flag: flags[flag] for flag in ("thinking", "template_token", "own_name", "other_speaker")},
        "truncated": sum(row["finish_reason"] == "length" for row in rows),
        "mean_words": sum(len(row["text"].split()) for row in rows) / len(rows),
    }
