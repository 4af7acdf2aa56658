from paddle_ernie.ops import reference
from paddle_ernie.ops.linear import linear, linear_transposed


def test_linear_equals_reference(check_operator, rng):
    check_operator(
        linear, reference.linear, [rng.standard_normal((5, 4)), rng.standard_normal((4, 3))]
    )


def test_linear_transposed_equals_reference(check_operator, rng):
    check_operator(
        linear_transposed,
        lambda x, weight: reference.linear(x, weight.T),
        [rng.standard_normal((5, 4)), rng.standard_normal((3, 4))],
    )
