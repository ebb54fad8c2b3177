"""Estimates, paired differences and Holm's correction, against values by hand, simulation and a plain Holm."""

import json
import math
import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest

from mascot.statistics import Corrected, Difference, bootstrap_mean, holm, paired_difference, pseudo_values


def clustered(rng: np.random.Generator, groups: int, size: int, within: float) -> tuple[list[float], list[str]]:
    """Values of mean 0: a standard normal of the group, and `within` times one of the value."""
    shared = np.repeat(rng.normal(size=groups), size)
    return (shared + within * rng.normal(size=groups * size)).tolist(), [f"context-{place // size}" for place in range(groups * size)]


def known(p: float | None) -> Difference:
    """A measured difference of which only p matters; its resampled means are 0 to 10,000, so that percentiles can be read off."""
    return Difference(0.5, 0.0, 1.0, 10, 5, p, np.arange(10_001.0))


def full_holm(p_values: Mapping[str, float]) -> dict[str, float]:
    ordered = sorted(p_values, key=lambda name: p_values[name])
    return {
        name: min(1.0, max((len(ordered) - earlier) * p_values[ordered[earlier]] for earlier in range(place + 1)))
        for place, name in enumerate(ordered)
    }


def adjusted(corrected: Mapping[str, Corrected]) -> dict[str, float]:
    return {name: one.p for name, one in corrected.items()}


def test_a_mean_is_over_values_and_its_interval_over_contexts():
    """Resamples of {1} and {0, 0, 0}: 1 and 0 a quarter of the time each, and 1/4 half of the time."""
    estimate = bootstrap_mean([1.0, 0.0, 0.0, 0.0], ["a", "b", "b", "b"])
    assert estimate is not None
    assert estimate.as_metrics() == {"mean": 0.25, "low": 0.0, "high": 1.0, "n": 4, "groups": 2}
    middle = bootstrap_mean([1.0, 0.0, 0.0, 0.0], ["a", "b", "b", "b"], confidence=0.4)
    assert middle is not None
    assert (middle.low, middle.high) == (0.25, 0.25)


def test_missing_values_are_left_out_and_never_0():
    values, groups = [4.0, None, 2.0, None, 3.0], ["a", "a", "b", "c", "b"]
    estimate = bootstrap_mean(values, groups)
    assert estimate == bootstrap_mean([4.0, 2.0, 3.0], ["a", "b", "b"])
    assert estimate is not None
    assert (estimate.mean, estimate.n, estimate.groups) == (3.0, 3, 2)
    assert bootstrap_mean([None, None], ["a", "b"]) is None
    assert bootstrap_mean([], []) is None


def test_one_context_has_a_mean_and_no_interval():
    estimate, difference = bootstrap_mean([1.0, 2.0], ["a", "a"]), paired_difference([1.0, 2.0], [2.0, 4.0], ["a", "a"])
    assert estimate is not None
    assert difference is not None
    assert estimate.as_metrics() == {"mean": 1.5, "low": None, "high": None, "n": 2, "groups": 1}
    assert difference.as_metrics() == {"mean": 1.5, "low": None, "high": None, "n": 2, "groups": 1, "p": None}
    with pytest.raises(ValueError, match="one context"):
        difference.interval(0.9)
    assert holm({"only": difference}, family=1) == {}


def test_every_sequence_needs_the_same_length():
    with pytest.raises(ValueError):
        bootstrap_mean([1.0], ["a", "b"])
    with pytest.raises(ValueError):
        paired_difference([1.0, 2.0], [1.0], ["a", "b"])
    with pytest.raises(ValueError):
        paired_difference([1.0], [1.0], ["a", "b"])


def test_intervals_cover_the_mean_of_clustered_values_as_often_as_they_say():
    rng = np.random.default_rng(11)
    covered = covered_naively = rejected = 0
    runs = 400
    for run in range(runs):
        values, groups = clustered(rng, groups=40, size=5, within=0.3)
        difference = paired_difference([0.0] * len(values), values, groups, seed=run, resamples=500)
        naive = bootstrap_mean(values, [str(place) for place in range(len(values))], seed=run, resamples=500)
        assert difference is not None and difference.low is not None and difference.high is not None and difference.p is not None
        assert naive is not None and naive.low is not None and naive.high is not None
        covered += difference.low <= 0 <= difference.high
        covered_naively += naive.low <= 0 <= naive.high
        rejected += difference.p <= 0.05
    assert 0.91 <= covered / runs <= 0.98
    assert covered_naively / runs < 0.75
    assert 0.02 <= rejected / runs <= 0.09


def test_copies_of_a_value_within_a_context_do_not_narrow_the_interval():
    """Eight copies make the naive interval narrower by the square root of eight, and leave the one over contexts as it is."""
    values, groups = clustered(np.random.default_rng(3), groups=30, size=1, within=0.0)
    once, copied = bootstrap_mean(values, groups), bootstrap_mean(values * 8, groups * 8)
    naive = bootstrap_mean(values * 8, [str(place) for place in range(240)])
    assert once is not None and copied is not None and naive is not None
    widths = [one.high - one.low for one in (once, copied, naive) if one.low is not None and one.high is not None]
    assert widths[1] == pytest.approx(widths[0])
    assert widths[0] / widths[2] == pytest.approx(math.sqrt(8), rel=0.05)


def test_the_order_of_items_does_not_matter():
    rng = np.random.default_rng(7)
    values, groups = clustered(rng, groups=12, size=4, within=1.0)
    other = rng.normal(size=len(values)).tolist()
    order = rng.permutation(len(values))
    shuffled, named, opposite = ([row[place] for place in order] for row in (values, groups, other))
    assert bootstrap_mean(shuffled, named) == bootstrap_mean(values, groups)
    assert paired_difference(shuffled, opposite, named) == paired_difference(values, other, groups)


def test_a_seed_gives_one_result_and_another_seed_another():
    values, groups = clustered(np.random.default_rng(1), groups=15, size=3, within=1.0)
    assert bootstrap_mean(values, groups, seed=4) == bootstrap_mean(values, groups, seed=4)
    assert bootstrap_mean(values, groups, seed=4) != bootstrap_mean(values, groups, seed=5)


def test_identical_systems_do_not_differ():
    values, groups = clustered(np.random.default_rng(2), groups=10, size=3, within=1.0)
    difference = paired_difference(values, values, groups)
    assert difference is not None
    assert difference.as_metrics() == {"mean": 0.0, "low": 0.0, "high": 0.0, "n": 30, "groups": 10, "p": 1.0}


def test_a_strong_shift_is_seen_and_its_p_is_at_the_floor():
    rng = np.random.default_rng(2)
    values, groups = clustered(rng, groups=20, size=3, within=1.0)
    shifted = [value + 1 + 0.5 * rng.normal() for value in values]
    up, down = paired_difference(values, shifted, groups), paired_difference(shifted, values, groups)
    assert up is not None and down is not None and up.low is not None and down.high is not None
    assert up.low > 0.5
    assert down.high < -0.5
    assert up.p == down.p == 2 / 20_001


def test_a_pair_that_misses_one_value_is_left_out():
    difference = paired_difference([1.0, None, 2.0, 5.0], [2.0, 9.0, 2.0, None], ["a", "a", "b", "c"])
    assert difference == paired_difference([1.0, 2.0], [2.0, 2.0], ["a", "b"])
    assert difference is not None
    assert (difference.mean, difference.n, difference.groups) == (0.5, 2, 2)
    assert paired_difference([1.0, None], [None, 1.0], ["a", "b"]) is None


def test_p_by_hand():
    """Resamples of +3 and -1 have the means 3, 1, 1 and -1: a quarter is not above 0, so p is a half."""
    difference = paired_difference([0.0, 0.0], [3.0, -1.0], ["a", "b"])
    assert difference is not None and difference.p is not None
    below = int(np.count_nonzero(difference.means < 0))
    assert difference.p == 2 * (below + 1) / 20_001
    assert difference.p == pytest.approx(0.5, abs=0.03)
    assert set(difference.means) == {3.0, 1.0, -1.0}


def test_resamples_that_cancel_out_count_on_both_sides_despite_rounding():
    """0.3 - 0.1 - 0.2 is not 0 in floats; p must be that of whole numbers."""
    assert 0.3 - 0.1 - 0.2 != 0
    whole = paired_difference([0.0] * 3, [3.0, -1.0, -2.0], ["a", "b", "c"])
    tenths = paired_difference([0.0] * 3, [0.3, -0.1, -0.2], ["a", "b", "c"])
    assert whole is not None and tenths is not None
    assert tenths.p == whole.p
    assert np.count_nonzero(tenths.means == 0) == np.count_nonzero(whole.means == 0) > 0


def test_an_interval_widens_with_its_confidence_and_is_wider_than_plain_percentiles():
    values, groups = clustered(np.random.default_rng(9), groups=15, size=3, within=1.0)
    difference = paired_difference([0.0] * len(values), values, groups)
    assert difference is not None and difference.low is not None and difference.high is not None
    low, high = difference.interval(0.95)
    # Student's 97.5 % with 14 degrees of freedom is 2.145, the normal one 1.960.
    wider = (15 / 14) ** 0.5 * 2.1448 / 1.95996
    assert (difference.mean - low, high - difference.mean) == pytest.approx(
        ((difference.mean - difference.low) * wider, (difference.high - difference.mean) * wider), rel=1e-4
    )
    wider_low, wider_high = difference.interval(0.995)
    assert wider_low < low < difference.mean < high < wider_high


def test_corrected_intervals_of_few_contexts_miss_about_as_often_as_they_say():
    """20 contexts at 1 - 0.05 / 7: plain percentiles miss the true mean more than twice as often as 0.7 %."""
    rng, missed, runs = np.random.default_rng(3), 0, 1500
    names = [str(number) for number in range(20)]
    for _ in range(runs):
        difference = paired_difference([0.0] * 20, rng.normal(size=20).tolist(), names, resamples=2000)
        assert difference is not None
        low, high = difference.interval(1 - 0.05 / 7)
        missed += not low <= 0 <= high
    assert missed / runs < 0.0125


def test_pseudo_values_lie_round_what_was_observed():
    difference = paired_difference([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], ["a", "b", "c"], observed=0.5)
    plain = paired_difference([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], ["a", "b", "c"])
    assert difference is not None and plain is not None and plain.low is not None
    assert difference.mean == pytest.approx(0.5) and difference.low == pytest.approx(plain.low - 1.5)
    assert difference.p is not None and plain.p is not None and difference.p > plain.p


def test_metrics_are_json_and_hold_no_resamples():
    difference = paired_difference([0, 0, 1], [1, 0, 1], ["a", "b", "c"])
    assert difference is not None
    assert set(json.loads(json.dumps(difference.as_metrics(), allow_nan=False))) == {"mean", "low", "high", "n", "groups", "p"}


def test_memory_stays_bounded_with_many_contexts():
    groups = [str(place) for place in range(5_000)]
    tracemalloc.start()
    bootstrap_mean([1.0] * 5_000, groups, resamples=2_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6, "one matrix of all draws alone would be 80 MB"


def test_holm_by_hand():
    differences = {"a": known(0.04), "b": known(0.01), "c": known(0.03)}
    assert adjusted(holm(differences, family=3)) == pytest.approx({"b": 0.03, "c": 0.06, "a": 0.06})
    assert adjusted(holm(differences, family=5)) == pytest.approx({"b": 0.05, "c": 0.12, "a": 0.12})
    assert adjusted(holm(differences, family=50)) == pytest.approx({"b": 0.5, "c": 1.0, "a": 1.0})


def test_holm_gives_the_interval_of_each_step():
    """Confidence 1 - 0.05 / 5, then / 4 and / 3; equal p share the wider one."""
    given = {"a": known(0.3), "b": known(0.1), "c": known(0.2)}
    corrected = holm(given, family=5)
    for name, factor in (("b", 5), ("c", 4), ("a", 3)):
        assert (corrected[name].low, corrected[name].high) == given[name].interval(1 - 0.05 / factor)
    tied = holm({"a": known(0.1), "b": known(0.1)}, family=2)
    assert tied["a"] == tied["b"]
    assert (tied["a"].low, tied["a"].high) == known(0.1).interval(1 - 0.05 / 2)


def test_what_was_not_measured_gets_no_entry_and_still_counts_in_the_family():
    corrected = holm({"a": known(0.01), "b": None, "c": known(None)}, family=3)
    assert adjusted(corrected) == pytest.approx({"a": 0.03})
    assert holm({"b": None}, family=3) == {}


def test_a_family_holds_all_that_is_known():
    with pytest.raises(ValueError, match=r"a family of 1 .* the 2 that are known: a, b"):
        holm({"b": known(0.1), "a": known(0.2)}, family=1)
    assert set(holm({"a": known(0.1), "b": None}, family=1)) == {"a"}


def test_holm_on_a_part_is_never_less_strict_than_on_the_whole():
    """Random families, with ties, of which two domains know a part each; with nothing unknown it is Holm itself."""
    rng = np.random.default_rng(23)
    stricter = 0
    for _ in range(300):
        size = int(rng.integers(2, 12))
        p_values = {f"hypothesis-{place}": max(0.001, round(float(rng.random() ** 4), 3)) for place in range(size)}
        whole = full_holm(p_values)
        domain = rng.random(size) < rng.random()
        for side in (domain, ~domain):
            part = {name: known(p) for (name, p), inside in zip(p_values.items(), side, strict=True) if inside}
            for name, p in adjusted(holm(part, family=size)).items():
                assert p >= whole[name] - 1e-12
                stricter += p > whole[name] + 1e-12
        assert adjusted(holm({name: known(p) for name, p in p_values.items()}, family=size)) == pytest.approx(whole)
    assert stricter > 100


def test_pseudo_values_of_a_mean_are_the_group_means():
    """With groups of one size, leaving one out moves the mean by just what it contributed."""
    values, groups = [1.0, 3.0, 5.0, 9.0], ["a", "a", "b", "b"]
    found = pseudo_values(lambda chosen: sum(values[index] for index in chosen) / len(chosen), groups)
    assert found == pytest.approx({"a": 2.0, "b": 7.0})


def test_pseudo_values_are_missing_where_the_measure_is():
    assert pseudo_values(lambda chosen: 1.0 if 0 in chosen else None, ["a", "b", "c"]) == {"a": None, "b": 1.0, "c": 1.0}
