import numpy as np
import paddle

from paddle_ernie.ops import reference
from paddle_ernie.ops.rope import rope, rope_rotations


def test_values_and_gradients(check_operator, rng):
    positions = np.array([0, 1, 2, 0, 17])
    rotations = rope_rotations(positions, 4, 10_000.0)
    check_operator(
        lambda x: rope(x, rotations, 2),
        lambda x: reference.rope(x, positions, 10_000.0, 2),
        [rng.standard_normal((5, 3, 4))],
        tolerance=3e-6,  # angles are fp32
    )


def test_scores_depend_on_distance_only(rng):
    query, key = rng.standard_normal((2, 1, 1, 8)).astype(np.float32)

    def score(query_position: int, key_position: int) -> float:
        turned = [
            rope(paddle.to_tensor(x), rope_rotations(np.array([position]), 8, 1e4), 1).numpy()
            for x, position in ((query, query_position), (key, key_position))
        ]
        return float((turned[0] * turned[1]).sum())

    assert abs(score(5, 3) - score(105, 103)) < 1e-4
    assert abs(score(5, 3) - score(5, 4)) > 1e-3


def test_heads_after_the_rotated_ones_are_copied(rng):
    x = rng.standard_normal((4, 5, 6)).astype(np.float32)
    y = rope(paddle.to_tensor(x), rope_rotations(np.arange(4), 6, 1e6), 3).numpy()
    assert np.array_equal(y[:, 3:], x[:, 3:])
    assert not np.array_equal(y[1:, :3], x[1:, :3])
