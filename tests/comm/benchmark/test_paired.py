import statistics

from gradwire.comm.benchmark.paired import compare, interval


def test_the_interval_holds_the_median_and_narrows_with_more_rounds() -> None:
    few = [0.9, 1.0, 1.1, 1.3]
    middle, low, high = interval(few)
    assert (middle, low, high) == (statistics.median(few), 0.9, 1.3)
    middle, more_low, more_high = interval(few * 25)
    assert low < more_low <= middle <= more_high < high


def test_ratios_are_of_the_same_round() -> None:
    assert compare([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == (2.0, 2.0, 2.0)
