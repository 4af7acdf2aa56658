import numpy as np
import pytest

from paddle_ernie.monitor.records import Histogram, MetricRecord, as_histogram


def test_counts_by_index():
    histogram = as_histogram(np.array([3, 0, 5, 4]))
    assert histogram.counts.tolist() == [3, 0, 5, 4]
    assert histogram.edges.tolist() == [0, 1, 2, 3, 4]
    assert as_histogram(histogram) is histogram


def test_values_are_binned_without_the_non_finite_ones():
    histogram = Histogram.of_values(np.array([0.0, 1.0, 2.0, 2.0, np.nan, np.inf]), bins=2)
    assert histogram.counts.tolist() == [1, 3]
    assert histogram.edges.tolist() == [0, 1, 2]


def test_wrong_number_of_edges_is_refused():
    with pytest.raises(ValueError, match="2 counts needs 3 edges, got 2"):
        Histogram(np.ones(2), np.ones(2))


@pytest.mark.parametrize("name", ["step", "time", "histograms", "texts", "a%b", "", "/"])
def test_names_that_would_clash_are_refused(name):
    with pytest.raises(ValueError, match="cannot be used"):
        MetricRecord(1, {name: 1.0})
    with pytest.raises(ValueError, match="cannot be used"):
        MetricRecord(1, texts={name: "x"})
