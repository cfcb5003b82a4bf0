"""Intervals and p-values: the fast ways against the plain ones under the same draws, and what is promised of them in
simulation."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest, kstest, norm, ttest_rel

from eow.errors import EowError
from eow.metrics import auroc, ece, nll
from eow.metrics.resampling import draws, replicates
from eow.metrics.statistics import basic, bootstrap_interval, paired_difference, paired_t


def overconfident(draw: np.random.Generator, count: int, by: float) -> tuple[np.ndarray, np.ndarray]:
    """Confidences whose true accuracy is lower by `by` everywhere: the true ECE is `by`, in any bins."""
    confidence = draw.uniform(0.2, 1, count)
    return confidence, draw.random(count) < confidence - by


def coverage(covered: int, trials: int, level: float) -> None:
    """A share that is `level` but for a few points: the bootstrap is approximate, a broken one is far off."""
    assert abs(covered / trials - level) < 0.03 + 3 * np.sqrt(level * (1 - level) / trials)


def test_the_basic_interval_by_hand() -> None:
    """Resampled values from 10 to 12 about a value of 10: the truth is below it as they are above it."""
    low, high = basic(10.0, np.linspace(10, 12, 201), level=0.9)
    assert (low, high) == (pytest.approx(8.1), pytest.approx(9.9))


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("ece", ece),
        ("accuracy", lambda confidence, correct: np.mean(correct)),
        ("nll", lambda confidence, correct: np.mean(-np.log(confidence))),
        ("mean", lambda confidence, correct: np.mean(-np.log(confidence))),
    ],
)
def test_the_fast_way_is_the_plain_way(name: str, twin: Callable[..., float]) -> None:
    draw = np.random.default_rng(0)
    runs = [overconfident(draw, 333, by) for by in (0.0, 0.1, 0.2)]
    arrays = {
        "ece": runs, "accuracy": [(right,) for _, right in runs],
        "nll": [(-np.log(sure),) for sure, _ in runs], "mean": [(-np.log(sure),) for sure, _ in runs],
    }[name]  # fmt: skip
    values, resampled = replicates(name, arrays, 50, seed=3)
    plain_values, plain = replicates(twin, runs, 50, seed=3)
    assert resampled.shape == (50, 3)
    np.testing.assert_allclose(values, plain_values, rtol=1e-10)
    np.testing.assert_allclose(resampled, plain, rtol=1e-10)
    alone = replicates(name, arrays[:1], 50, seed=3)  # which need not be summed as several are
    np.testing.assert_allclose(alone[1], plain[:, :1], rtol=1e-10)
    assert alone[0] == pytest.approx(plain_values[:1])


def test_resampled_auroc_is_auroc_of_the_resampled() -> None:
    draw = np.random.default_rng(1)
    runs = [(draw.normal(gap, 1, 70).round(1), draw.normal(0, 1, 40).round(1)) for gap in (0.5, 1.5)]  # many ties
    values, resampled = replicates("auroc", runs, 30, seed=5)
    known_draws, unknown_draws = (next(draws(count, 30, (5, stream), 30)) for stream, count in enumerate((70, 40)))
    for run, (known, unknown) in enumerate(runs):
        assert values[run] == pytest.approx(auroc(known, unknown), rel=1e-12)
        plain = [auroc(known[chosen], unknown[other]) for chosen, other in zip(known_draws, unknown_draws)]
        np.testing.assert_allclose(resampled[:, run], plain, rtol=1e-12)


def test_draws_depend_on_the_key_and_not_on_the_block() -> None:
    whole = np.concatenate(list(draws(37, 20, (0, 0), 20)))
    np.testing.assert_array_equal(whole, np.concatenate(list(draws(37, 20, (0, 0), 3))))
    np.testing.assert_array_equal(whole, np.concatenate(list(draws(37, 20, (0, 0), 0))))
    assert (whole != np.concatenate(list(draws(37, 20, (1, 0), 20)))).any()
    assert set(whole.ravel()) == set(range(37))


def test_one_seed_gives_one_answer_and_inputs_may_be_tensors_or_lists() -> None:
    confidence, correct = overconfident(np.random.default_rng(0), 100, 0.1)
    one = bootstrap_interval("ece", confidence, correct, rounds=100)
    assert one == bootstrap_interval("ece", confidence.tolist(), correct.tolist(), rounds=100)
    assert one == bootstrap_interval("ece", torch.tensor(confidence), torch.tensor(correct), rounds=100)
    assert one != bootstrap_interval("ece", confidence, correct, rounds=100, seed=1)
    assert one.value == pytest.approx(ece(confidence, correct))
    wide, narrow = (bootstrap_interval("accuracy", correct, level=level) for level in (0.99, 0.5))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_a_mean_has_the_interval_of_the_normal_approximation() -> None:
    values = np.random.default_rng(0).exponential(size=4000)
    found = bootstrap_interval("mean", values, rounds=4000)
    half = norm.ppf(0.975) * values.std() / np.sqrt(4000)
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_an_interval_stays_within_the_range_of_its_metric() -> None:
    confidence = np.random.default_rng(0).uniform(0.2, 1, 200)
    correct = np.random.default_rng(1).random(200) < confidence
    assert bootstrap_interval("ece", confidence, correct).low >= 0
    assert bootstrap_interval(ece, confidence, correct).low < 0  # a function's range is not known
    assert bootstrap_interval("auroc", [2, 3, 1.4], [1, 1.5, 0]).high <= 1


@pytest.mark.parametrize("right", [0, 1, 25, 47, 50])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_interval_of_an_accuracy_is_wilsons(right: int, level: float) -> None:
    found = bootstrap_interval("accuracy", np.arange(50) < right, level=level)
    theirs = binomtest(right, 50).proportion_ci(level, method="wilson")
    assert found == pytest.approx((right / 50, theirs.low, theirs.high), abs=1e-12)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high  # also at 0 and at 1


@pytest.mark.parametrize("count", [20, 50, 200])
def test_the_interval_of_an_accuracy_covers_by_exact_binomial_sums(count: int) -> None:
    """Every number of right answers with its probability: no draw, and a basic bootstrap of the same fails it."""
    possible = np.arange(count + 1)
    ends = np.array([bootstrap_interval("accuracy", np.arange(count) < right)[1:] for right in possible])

    def covered(low: np.ndarray, high: np.ndarray, rate: float) -> float:
        return float(binom.pmf(possible, count, rate) @ ((low <= rate) & (rate <= high)))

    assert np.mean([covered(*ends.T, rate) for rate in np.linspace(0.5, 0.999, 500)]) == pytest.approx(0.95, abs=5e-3)
    for rate in (0.5, 0.8, 0.9, 0.95, 0.98):
        assert covered(*ends.T, rate) > 0.92
    if count == 50:
        shares = possible / count
        above, below = (binom.ppf(q, count, shares) / count for q in (0.975, 0.025))  # as infinitely many rounds draw
        basics = [covered(2 * shares - above, 2 * shares - below, rate) for rate in (0.9, 0.98)]
        assert basics == pytest.approx([0.885, 0.636], abs=1e-3)
        assert [covered(*ends.T, rate) for rate in (0.9, 0.98)] == pytest.approx([0.970, 0.922], abs=1e-3)


@pytest.mark.parametrize("name", ["accuracy", "nll", "auroc"])
def test_intervals_cover_the_truth_as_often_as_they_say(name: str) -> None:
    draw, trials, level, covered = np.random.default_rng(2), 400, 0.9, 0
    truth = {"accuracy": 0.8, "nll": 1.0, "auroc": norm.cdf(1 / np.sqrt(2))}[name]
    for trial in range(trials):
        samples: dict[str, tuple[np.ndarray, ...]] = {
            "accuracy": (draw.random(200) < 0.8,),
            "nll": (draw.exponential(size=200),),
            "auroc": (draw.normal(1, 1, 120), draw.normal(0, 1, 80)),
        }
        found = bootstrap_interval(name, *samples[name], rounds=200, level=level, seed=trial)
        covered += found.low <= truth <= found.high
    coverage(covered, trials, level)


def test_the_basic_interval_covers_a_biased_ece_where_the_percentile_interval_does_not() -> None:
    draw, trials, level, truth = np.random.default_rng(3), 300, 0.9, 0.05
    by_basic = by_percentile = 0
    values = []
    for trial in range(trials):
        confidence, correct = overconfident(draw, 500, truth)
        value, resampled = replicates("ece", [(confidence, correct)], 200, trial)
        low, high = basic(value[0], resampled[:, 0], level)
        by_basic += low <= truth <= high
        low, high = np.quantile(resampled[:, 0], [(1 - level) / 2, (1 + level) / 2])
        by_percentile += low <= truth <= high
        values.append(value[0])
    assert np.mean(values) > truth + 0.01  # the bias
    coverage(by_basic, trials, level)
    assert by_percentile < 0.6 * trials


@pytest.mark.parametrize("name", ["accuracy", "nll"])
def test_p_values_are_about_uniform_when_there_is_no_difference(name: str) -> None:
    """Two methods that are equally good in truth, on the same 300 samples, agreeing in part."""
    draw, p_values = np.random.default_rng(4), []
    for trial in range(300):
        shared = draw.random(300)
        own = [draw.exponential(size=300) for _ in range(2)]
        a, b = ((shared + 0.3 * each < 1) if name == "accuracy" else shared + each for each in own)
        p_values.append(paired_difference(name, a, b, rounds=200, seed=trial).p_value)
    assert kstest(p_values, "uniform").pvalue > 1e-3
    assert binomtest(sum(p <= 0.05 for p in p_values), 300, 0.05).pvalue > 1e-3


@pytest.mark.parametrize("by", [0.0, 0.02, 0.1])
def test_equally_miscalibrated_methods_are_seldom_told_apart(by: float) -> None:
    """ECE is no mean, and its p-value is not uniform; at most about 8 % of them are below 0.05."""
    draw, low = np.random.default_rng(5), 0
    for trial in range(300):
        confidence, correct = overconfident(draw, 500, by)
        other = draw.random(500) < confidence - by
        low += paired_difference("ece", (confidence, correct), (confidence, other), 200, seed=trial).p_value <= 0.05
    assert binomtest(low, 300, 0.08, alternative="greater").pvalue > 1e-2


def test_the_p_value_of_a_mean_and_its_interval_agree() -> None:
    draw, rounds = np.random.default_rng(5), 400
    decided = []
    for trial in range(60):
        a = draw.normal(0.2, 1, 100)
        found = paired_difference("mean", a, np.zeros(100), rounds=rounds, seed=trial)
        if abs(found.p_value - 0.05) > 0.02:  # one splits the error between two tails, the other does not ask
            assert (found.p_value < 0.05) == (not found.low <= 0 <= found.high)
            decided.append(found.p_value < 0.05)
    assert any(decided)
    assert not all(decided)


@pytest.mark.parametrize(("count", "covers"), [(10, 0.90), (20, 0.91), (50, 0.93)])
def test_few_samples_cover_what_the_docstring_says(count: int, covers: float) -> None:
    draw, trials, covered = np.random.default_rng(13), 600, 0
    for trial in range(trials):
        found = paired_difference("mean", draw.normal(size=count), np.zeros(count), rounds=200, seed=trial)
        covered += found.low <= 0 <= found.high
    assert binomtest(covered, trials, covers).pvalue > 1e-2


@pytest.mark.parametrize(("count", "by", "covers"), [(200, 0.02, 0.75), (200, 0.1, 0.89), (500, 0.05, 0.88)])
def test_the_interval_of_an_ece_covers_what_the_docstring_says(count: int, by: float, covers: float) -> None:
    draw, trials, covered = np.random.default_rng(15), 400, 0
    for trial in range(trials):
        found = bootstrap_interval("ece", *overconfident(draw, count, by), rounds=300, seed=trial)
        covered += found.low <= by <= found.high
    assert binomtest(covered, trials, covers).pvalue > 1e-2
    assert binomtest(covered, trials, 0.95).pvalue < 1e-3


def test_pairing_sees_what_two_separate_intervals_do_not() -> None:
    draw = np.random.default_rng(6)
    b = draw.random(2000) < 0.9
    a = b | (np.arange(2000) % 100 == 0)  # better by about 0.1 of one per cent of the samples
    found = paired_difference("accuracy", a, b)
    assert found.value == pytest.approx(a.mean() - b.mean())
    apart = [bootstrap_interval("accuracy", each) for each in (a, b)]
    assert apart[0].low < apart[1].high  # they overlap
    single = bootstrap_interval("accuracy", b)
    assert found.high - found.low < 0.3 * (single.high - single.low)


def test_a_true_difference_is_found_and_has_its_sign() -> None:
    draw = np.random.default_rng(7)
    bad, good = overconfident(draw, 2000, 0.2), overconfident(draw, 2000, 0.05)
    found = paired_difference("ece", bad, good)
    assert found.low < 0.15 < found.high
    assert found.p_value == pytest.approx(1 / 1001)  # the least there is in 1000 rounds
    turned = paired_difference("ece", good, bad)
    assert (turned.value, turned.low, turned.high) == pytest.approx((-found.value, -found.high, -found.low))
    assert turned.p_value == found.p_value
    known, unknown = draw.normal(1, 1, 300), draw.normal(0, 1, 300)
    worse = paired_difference("auroc", (known, unknown), (known + draw.normal(0, 3, 300), unknown))
    assert worse.value > 0.1
    assert worse.p_value < 0.01


def test_a_method_does_not_differ_from_itself() -> None:
    confidence, correct = overconfident(np.random.default_rng(8), 100, 0.1)
    for seeds in (1, 3):
        a = (np.tile(confidence, (seeds, 1)), np.tile(correct, (seeds, 1)))
        found = paired_difference("ece", a, a, rounds=50)
        assert found[:4] == (0, 0, 0, 1)
        assert found.per_seed.tolist() == [0] * seeds


def test_seeds_may_be_rows_or_a_list_and_a_function_may_take_tables() -> None:
    draw = np.random.default_rng(9)
    sure = draw.uniform(0.5, 1, (2, 3, 50))
    right = draw.random((2, 3, 50)) < sure
    stacked = paired_difference("ece", (sure[0], right[0]), (sure[1], right[1]), rounds=40)
    listed = paired_difference("ece", ([*sure[0]], [*right[0]]), ([*sure[1]], [*right[1]]), rounds=40)
    tensors = paired_difference("ece", tuple(map(torch.tensor, (sure[0], right[0]))), (sure[1], right[1]), rounds=40)
    by_function = paired_difference(ece, ([*sure[0]], [*right[0]]), ([*sure[1]], [*right[1]]), rounds=40)
    for other in (listed, tensors, by_function):
        assert other[:4] == pytest.approx(stacked[:4])
    of_a, of_b = ([ece(*seed) for seed in zip(sure[method], right[method])] for method in range(2))
    assert stacked.per_seed == pytest.approx(np.subtract(of_a, of_b))
    assert stacked.value == pytest.approx(stacked.per_seed.mean())

    probs, labels = draw.dirichlet(np.ones(4), (2, 60)), draw.integers(0, 4, 60)
    losses = [-np.log(each[np.arange(60), labels]) for each in probs]
    assert paired_difference(nll, (probs[0], labels), (probs[1], labels), rounds=40)[:4] == pytest.approx(
        paired_difference("nll", *losses, rounds=40)[:4]
    )


def seed_study(draw: np.random.Generator, seeds: int, between: float, shared: float) -> tuple[np.ndarray, np.ndarray]:
    """(S, N) values of two methods of the same true mean: seeds differ by `between`, samples by `shared`."""
    samples, each = draw.normal(0, shared, 150), draw.normal(0, between, (seeds, 1))
    return samples + each + draw.normal(0, 0.5, (seeds, 150)), np.zeros((seeds, 150))


@pytest.mark.parametrize(("between", "shared"), [(1.0, 1.0), (0.0, 3.0), (0.2, 3.0)])
def test_three_seeds_are_enough_for_an_honest_interval(between: float, shared: float) -> None:
    """Whether the seeds or the samples make the noise, 90 % is at least about 90 %. Resampling three seeds gives 75 %
    where they make it, as the next test shows."""
    draw, trials, covered = np.random.default_rng(10), 300, 0
    for trial in range(trials):
        found = paired_difference("mean", *seed_study(draw, 3, between, shared), rounds=200, level=0.9, seed=trial)
        covered += found.low <= 0 <= found.high
    assert binomtest(covered, trials, 0.88, alternative="less").pvalue > 1e-3
    assert covered < trials  # and it is no empty promise


def test_noise_of_each_sample_and_seed_is_counted_twice() -> None:
    """As documented: of equally good methods less than 1 % have p < 0.05; exact p-values would have 15 of 300."""
    draw = np.random.default_rng(14)
    p_values = [
        paired_difference("mean", *draw.normal(size=(2, 3, 100)), rounds=200, seed=i).p_value for i in range(300)
    ]
    assert sum(p < 0.05 for p in p_values) <= 3


def test_resampling_three_seeds_covers_too_little() -> None:
    draw, trials, covered = np.random.default_rng(11), 200, 0
    for trial in range(trials):
        a, _ = seed_study(draw, 3, 1.0, 1.0)
        value, resampled = replicates("mean", [(row,) for row in a], 200, trial)
        chosen = np.take_along_axis(resampled, np.random.default_rng(trial).integers(3, size=(200, 3)), 1).mean(1)
        low, high = basic(value.mean(), chosen, 0.9)
        covered += low <= 0 <= high
    assert covered < 0.8 * trials


def test_when_samples_make_no_noise_the_seeds_decide_by_students_t() -> None:
    draw = np.random.default_rng(12)
    a, b = draw.normal(0.8, 1, (5, 1)), draw.normal(0, 1, (5, 1))
    found = paired_difference("mean", np.tile(a, 20), np.tile(b, 20), rounds=20_000)
    exact = paired_t(a[:, 0], b[:, 0])
    assert found.p_value == pytest.approx(exact.p_value, abs=0.02)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), rel=0.06)


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_paired_t_agrees_with_scipy(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    a, b = draw.normal(0.5, 1, seeds), draw.normal(0, 1, seeds)
    found, theirs = paired_t(a, b, level=0.9), ttest_rel(a, b)
    assert found.p_value == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval(0.9)), rel=1e-9)
    assert found.per_seed == pytest.approx(a - b)


def test_paired_t_without_spread() -> None:
    assert paired_t([1, 2], [1, 2])[:4] == (0, 0, 0, 1)
    assert paired_t([2, 3], [1, 2])[:4] == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval("f1", [1]), "no metric 'f1'"),
        (lambda: bootstrap_interval("ece", [0.5]), "confidence and correct: 1 arrays"),
        (lambda: bootstrap_interval("accuracy", [1], rounds=0), "rounds is 0"),
        (lambda: bootstrap_interval("accuracy", [1], level=95), "level is 95"),
        (lambda: bootstrap_interval("accuracy", []), "empty"),
        (lambda: bootstrap_interval("accuracy", [0.5]), "True/False"),
        (lambda: bootstrap_interval("nll", [-0.5]), "negative"),
        (lambda: bootstrap_interval("nll", [float("inf")]), "infinite"),
        (lambda: bootstrap_interval("nll", [[0.5, 0.5]]), "shape"),
        (lambda: bootstrap_interval("ece", [0.5, 0.5], [1]), "same samples"),
        (lambda: bootstrap_interval("auroc", [0.5], [float("nan")]), "unknown has 1"),
        (lambda: bootstrap_interval(ece, [0.5, 0.5], [1]), "same samples"),
        (lambda: bootstrap_interval(ece, [], []), "empty"),
        (lambda: paired_difference("accuracy", [1, 0], [1]), "same samples"),
        (lambda: paired_difference("accuracy", np.ones((2, 3)), np.ones((3, 3))), "2 seeds and b has 3"),
        (lambda: paired_difference("ece", (np.ones((2, 3)), np.ones(3)), (np.ones(3), np.ones(3))), r"\[2, 1\] seeds"),
        (lambda: paired_difference("ece", np.ones(3), np.ones(3)), "confidence and correct"),
        (lambda: paired_difference("accuracy", [[1, 0], [1]], [[1, 0], [1, 1]]), "same samples"),
        (lambda: paired_difference("f1", [1], [1]), "no metric 'f1'"),
        (lambda: paired_difference("accuracy", [1] * 9, [0] * 9), "9 samples are too few .* at least 10"),
        (lambda: paired_difference("accuracy", np.ones((3, 9)), np.zeros((3, 9))), "9 samples are too few"),
        (lambda: paired_difference(ece, (np.ones(4), np.ones(4)), (np.ones(4), np.ones(4))), "4 samples are too few"),
        (lambda: paired_difference("auroc", *[(np.ones(50), np.zeros(3))] * 2), "3 samples are too few"),
        (lambda: paired_t([1], [2]), "at least two seeds"),
        (lambda: paired_t([1, 2], [2]), "same samples"),
        (lambda: paired_t([1, float("nan")], [2, 3]), "a has 1"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(EowError, match=message):
        call()  # type: ignore[operator]
