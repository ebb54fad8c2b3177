"""Judgments to preference pairs: `mascot.pairs.preference_pairs` against a plain Python loop.

What is compared: the same judgments, as a polars frame to the library, as a list of dicts to `itertools.combinations` over the
candidates of each context. Both make the same pairs with the same columns at margin 0.5, which is checked row by row; the library
makes its counts as well. Reading the file and turning it into dicts is not timed.

Sizes: a million judgments: 125,000 contexts of two turns, K = 8 replies of 20 words; scores on a 0.1 grid from 1 to 5, of which
3 % are missing; 4 % of the replies are duplicates and 1 % empty.

Target: the library does at least 20 times as many judgments a second as the loop. Seconds are the median of the repeats. Each side
runs in a process of its own; its peak memory is the most that was ever resident up to the end of the first repeat, input included.

    python benchmarks/pairs.py [--rows 1000000] [--repeats 5]
"""

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mascot.dialogue.types import TURNS_DTYPE
from mascot.pairs import preference_pairs

K = 8
MARGIN = 0.5
WORDS_A_TEXT = 20
TARGET = 20
SEED = 7
SYLLABLES = pl.Series(
    ["ba", "con", "der", "el", "fin", "gro", "ha", "jun", "kel", "lo", "mar", "ner", "os", "pre", "qui", "rest", "su", "ta", "ver"]
)


def build(path: Path, rows: int) -> None:
    """Write the judgments, a Parquet file like that of the stage `judgments` in all that pairs need."""
    syllables = [pl.DataFrame({f"part{place}": SYLLABLES}) for place in range(3)]
    words = syllables[0].join(syllables[1], how="cross").join(syllables[2], how="cross").select(pl.concat_str(pl.all())).to_series()
    seeds = iter(range(SEED, SEED + 1000))

    def draw(values: pl.Series, count: int) -> pl.Series:
        return values.sample(count, with_replacement=True, seed=next(seeds))

    def texts(count: int) -> pl.Series:
        columns = [draw(words, count).alias(str(place)) for place in range(WORDS_A_TEXT)]
        return pl.DataFrame(columns).select(pl.concat_str(pl.all(), separator=" ")).to_series()

    contexts = rows // K
    turns = [pl.struct(pl.lit(speaker).alias("speaker"), texts(contexts).alias("text")) for speaker in ("listener", "person")]
    one_each = pl.select(pl.format("context-{}", pl.int_range(contexts)).alias("context_id")).with_columns(
        draw(pl.Series(["train"] * 9 + ["validation"]), contexts).alias("split"), pl.concat_list(turns).cast(TURNS_DTYPE).alias("turns")
    )
    judged = one_each.select(pl.all().gather(pl.int_range(contexts * K) // K)).with_columns(
        pl.int_range(contexts * K, dtype=pl.Int32).mod(K).alias("sample"),
        texts(contexts * K).alias("text"),
        draw(pl.Series(["ok"] * 95 + ["duplicate"] * 4 + ["empty"]), contexts * K).alias("status"),
        draw(pl.Series([tenths / 10 for tenths in range(10, 51)]), contexts * K).alias("score"),
        draw(pl.Series([True] * 3 + [False] * 97), contexts * K).alias("missing"),
    )
    judged.with_columns(pl.when(~pl.col("missing")).then("score").alias("score")).drop("missing").write_parquet(path)


def loop(judged: list[dict[str, Any]], margin: float) -> list[dict[str, Any]]:
    """The pairs as one would write them down without a data frame."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in judged:
        if row["status"] == "ok" and row["score"] is not None:
            groups.setdefault(row["context_id"], []).append(row)
    pairs = []
    for rows in groups.values():
        for one, other in combinations(rows, 2):
            gap = round(one["score"] - other["score"], 6)
            if gap and abs(gap) >= margin:
                chosen, rejected = (one, other) if gap > 0 else (other, one)
                pairs.append(
                    {
                        "context_id": chosen["context_id"],
                        "split": chosen["split"],
                        "turns": chosen["turns"],
                        "chosen": chosen["text"],
                        "rejected": rejected["text"],
                        "chosen_score": chosen["score"],
                        "rejected_score": rejected["score"],
                        "margin": abs(gap),
                    }
                )
    return pairs


def measure(work: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Seconds (the median) and MiB: the peak before the work, and after it was done once."""
    before, seconds, after = peak(), [], 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
        after = after or peak()
        del result
    return {"seconds": statistics.median(seconds), "input": before, "peak": after}


def peak() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**20 if sys.platform == "darwin" else used / 2**10


def measure_library(path: Path, repeats: int) -> dict[str, Any]:
    judged = pl.read_parquet(path)
    return measure(lambda: preference_pairs(judged, MARGIN), repeats)


def measure_loop(path: Path, repeats: int) -> dict[str, Any]:
    judged = pl.read_parquet(path).to_dicts()
    return measure(lambda: loop(judged, MARGIN), repeats)


def same_pairs(path: Path) -> tuple[int, bool]:
    """The number of pairs, and whether both sides make the same ones in the same order."""
    judged = pl.read_parquet(path)
    pairs, by_loop = preference_pairs(judged, MARGIN)[0], loop(judged.to_dicts(), MARGIN)
    return pairs.height, pairs.height == len(by_loop) and all(a == b for a, b in zip(pairs.iter_rows(named=True), by_loop, strict=True))


def in_own_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Spawned from this process, which stays small: a child's peak starts from its parent's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="judgments, a multiple of 8")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side; the median counts")
    given = parser.parse_args()
    rows = given.rows // K * K
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "judgments.parquet"
        in_own_process(build, path, rows)
        library = in_own_process(measure_library, path, given.repeats)
        plain = in_own_process(measure_loop, path, given.repeats)
        pairs, same = in_own_process(same_pairs, path)
    print(f"{rows:,} judgments of {rows // K:,} contexts, {pairs:,} pairs, the same from both: {'yes' if same else 'NO'}\n")
    print(f"{'':28}{'seconds':>10}{'judgments/s':>14}{'input MiB':>12}{'peak MiB':>12}")
    for name, one in (("mascot.pairs", library), ("plain loop", plain)):
        print(f"{name:28}{one['seconds']:>10.2f}{rows / one['seconds']:>14,.0f}{one['input']:>12,.0f}{one['peak']:>12,.0f}")
    print(f"{'ratio (target >= ' + str(TARGET) + ')':28}{plain['seconds'] / library['seconds']:>10.1f}")


if __name__ == "__main__":
    main()
