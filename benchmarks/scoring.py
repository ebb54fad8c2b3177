"""Scoring by a reward model: our path against a bare batched forward.

What is compared, in replies a second, on a scalar model over `models/base/encoder` with a fresh head (what it says does not matter):

- ours: `mascot.rewards.model.encode` and `scores`: rendering, tokenizing, batches of like length, results in the order given;
- bare: the same texts, tokenized and padded by the tokenizer in batches of the same size in the order given, one forward a batch.

Sizes: the written replies of all seven personas to their contexts, four times over. Target: ours / bare >= 0.9. Needs
`dvc repro base@encoder`; takes about a minute on 2 cores.

    python benchmarks/scoring.py [--times 4]
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from transformers import set_seed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mascot.dialogue.render import reward_text
from mascot.personas import load_persona
from mascot.references import load_base
from mascot.rewards.model import SEQUENCES_A_PASS, encode, load_scalar_model, reward_tokenizer, scores

TARGET = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=4, help="how often each written reply is scored")
    times = parser.parse_args().times

    base = load_base(Path("models/base/encoder"))
    tokenizer = reward_tokenizer(base)
    set_seed(7)
    model = load_scalar_model(base, tokenizer).eval()
    personas = [load_persona(path) for path in sorted(Path("data/personas").glob("*/*.yaml"))]
    dialogues = [(one.context, one.reply) for persona in personas for one in persona.replies] * times

    def ours() -> list[float]:
        return scores(model, tokenizer, [encode(tokenizer, turns, reply) for turns, reply in dialogues])

    @torch.inference_mode()
    def bare() -> list[float]:
        found: list[float] = []
        for first in range(0, len(dialogues), SEQUENCES_A_PASS):
            texts = [reward_text(turns, reply) for turns, reply in dialogues[first : first + SEQUENCES_A_PASS]]
            found += model(**tokenizer(texts, padding=True, return_tensors="pt")).logits[:, 0].tolist()
        return found

    bare()
    seconds = {}
    results = {}
    for name, path in (("ours", ours), ("bare", bare)):
        start = time.perf_counter()
        results[name] = path()
        seconds[name] = time.perf_counter() - start
    apart = max(abs(one - other) for one, other in zip(results["ours"], results["bare"], strict=True))
    print(f"{len(dialogues)} replies, {SEQUENCES_A_PASS} a batch; scores differ by {apart:.1e} at most\n")
    for name, taken in seconds.items():
        print(f"{name:28}{taken:>8.1f} s{len(dialogues) / taken:>10.1f} replies/s")
    print(f"\nours / bare (target >= {TARGET}){seconds['bare'] / seconds['ours']:>10.2f}")


if __name__ == "__main__":
    main()
