"""The table of what the engine's features bring."""

import pytest

from paddle_ernie.bench.serving import bench_serving, features
from tests.bench.tiny import ALONE, TINY


@pytest.mark.slow
def test_every_feature_has_a_line(tmp_path) -> None:
    model = TINY.model_copy(update={"max_position_embeddings": 128})
    (result,) = bench_serving(ALONE, model, tmp_path, new=3, rounds=1)
    assert [(line["feature"], line["rows"]) for line in result.values] == [
        (feature.name, feature.rows) for feature in features(128)
    ]
    assert all(line["ratio"] > 0 for line in result.values)


def test_features_are_two_ways_that_differ() -> None:
    for feature in features(512):
        assert feature.first != feature.second
        assert feature.prompt + feature.new <= 512
