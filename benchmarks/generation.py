"""Candidate generation: the engine's path against one request at a time and against bare batched `generate`.

What is compared, in generated tokens a second (up to and including the end token), on the policy in `models/base/policy`:

- ours: `mascot.engines.generate.generate` with `TransformersEngine` at batch size 64, all of it: tokenizing, planning, decoding to
  text, and the journal, a fresh one in a temporary folder;
- one at a time: `model.generate` on one prompt with one completion, for a sample of the same prompts;
- bare: `model.generate` on left-padded prompts with `num_return_sequences`, over all prompts in the order given, at each batch
  size; the best counts.

Sizes: K = 4 completions for each of the first 32 train and validation contexts of data/sample/support with the persona anchor;
at most 40 tokens, temperature 0.9, min_p 0.05; 12 prompts one at a time; bare batches of 16, 32, 64 and 96 sequences. The model is
loaded and warmed up before the clocks start.

Targets: ours / one at a time >= 4, ours / the best bare >= 0.9. Needs `dvc repro base@policy`; takes a few minutes on 2 cores.

    python benchmarks/generation.py [--contexts 32] [--single 12] [--batch-sizes 16 32 64 96]
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mascot.corpora.sample import load
from mascot.dialogue.render import speaker_messages
from mascot.engines.generate import generate
from mascot.engines.transformers import TransformersEngine
from mascot.engines.types import Request, Sampling
from mascot.journal import Journal
from mascot.personas import load_persona

K = 4
OUR_BATCH_SIZE = 64
SAMPLING = Sampling(max_tokens=40, temperature=0.9, min_p=0.05)
SEED = 7
TARGET_SINGLE, TARGET_BARE = 4, 0.9


def candidate_requests(count: int) -> list[Request]:
    persona = load_persona(Path("data/personas/support/anchor.yaml"))
    contexts = [one for one in load(Path("data/sample/support"), "support") if one.split in ("train", "validation")]
    return [Request(one.id, tuple(speaker_messages(persona, one.turns)), SAMPLING, SEED, K) for one in contexts[:count]]


def ours(engine: TransformersEngine, requests: Sequence[Request]) -> tuple[int, float]:
    """Tokens and seconds of the candidates' path."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.sqlite")
        start = time.perf_counter()
        answers = generate(engine, requests, journal, "ours")
        seconds = time.perf_counter() - start
        journal.close()
    return sum(len(one.token_ids or ()) for answer in answers.values() for one in answer), seconds


def bare(engine: TransformersEngine, requests: Sequence[Request], prompts_a_batch: int, samples: int) -> tuple[int, float]:
    """Tokens and seconds of `model.generate` on left-padded batches, in the order given; tokenizing is timed, as it is in ours."""
    tokenizer = engine.tokenizer
    tokenizer.padding_side = "left"
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": SAMPLING.max_tokens, "pad_token_id": tokenizer.pad_token_id}
    options |= {"temperature": SAMPLING.temperature, "top_k": SAMPLING.top_k, "top_p": SAMPLING.top_p, "min_p": SAMPLING.min_p}
    torch.manual_seed(SEED)
    tokens = 0
    start = time.perf_counter()
    for first in range(0, len(requests), prompts_a_batch):
        chats = [list(request.messages) for request in requests[first : first + prompts_a_batch]]
        texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
        inputs = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt").to(engine.model.device)
        with torch.inference_mode():
            output = engine.model.generate(**inputs, num_return_sequences=samples, **options)
        for row in output[:, inputs["input_ids"].shape[1] :].tolist():
            tokens += row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
    return tokens, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, default=32, help=f"prompts, of {K} completions each")
    parser.add_argument("--single", type=int, default=12, help="how many of the prompts are answered one at a time")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 32, 64, 96], help="sequences in a bare batch, multiples of 4")
    given = parser.parse_args()

    requests = candidate_requests(given.contexts)
    single = random.Random(SEED).sample(requests, min(given.single, len(requests)))
    engine = TransformersEngine(Path("models/base/policy"), OUR_BATCH_SIZE)
    bare(engine, requests[:1], 1, 1)

    measured = [("ours", *ours(engine, requests)), ("one at a time", *bare(engine, single, 1, 1))]
    for size in given.batch_sizes:
        measured.append((f"bare, {size} sequences", *bare(engine, requests, max(1, size // K), K)))
    rates = [tokens / seconds for _, tokens, seconds in measured]

    print(f"{len(requests)} prompts x {K} completions, {len(single)} of the prompts one at a time, {torch.get_num_threads()} threads\n")
    print(f"{'':36}{'tokens':>8}{'seconds':>9}{'tokens/s':>10}")
    for (name, tokens, seconds), rate in zip(measured, rates, strict=True):
        print(f"{name:36}{tokens:>8,}{seconds:>9.1f}{rate:>10.1f}")
    print(f"\n{f'ours / one at a time (target >= {TARGET_SINGLE})':36}{rates[0] / rates[1]:>8.2f}")
    print(f"{f'ours / best bare (target >= {TARGET_BARE})':36}{rates[0] / max(rates[2:]):>8.2f}")


if __name__ == "__main__":
    main()
