import paddle
import pytest

from paddle_ernie.ops.numerics import BF16, FP8, FP32, Numerics, PackCache, Recipe


def test_high_replaces_fp8_only():
    recipe = Recipe("fp8", "fp32", "bf16", power_of_two_scales=True)
    assert recipe.high == Recipe("bf16", "fp32", "bf16")
    assert FP8.high == BF16
    assert FP32.high == FP32


def test_unknown_format():
    with pytest.raises(ValueError, match="dgrad is 'fp16'; expected one of fp32, bf16, fp8"):
        Recipe(dgrad="fp16")


def test_packs_are_made_once_per_weight_and_key():
    cache, weight, other = PackCache(), paddle.ones([2]), paddle.ones([2])
    made = []

    def make():
        made.append(len(made))
        return paddle.to_tensor(made[-1])

    first = cache.get(weight, "a", make)
    assert cache.get(weight, "a", make) is first
    assert cache.get(weight, "b", make) is not first
    assert cache.get(other, "a", make) is not first
    cache.clear()
    assert cache.get(weight, "a", make) is not first
    assert len(made) == 4


def test_variants_share_the_packs():
    numerics = Numerics(FP8)
    assert numerics.high.packs is numerics.packs
    assert numerics.high.recipe == BF16
    assert numerics.exact.packs is numerics.packs
    assert numerics.exact.recipe == FP32


def test_nothing_is_kept_for_a_single_pass():
    cache, weight = PackCache(keep=False), paddle.ones([2])
    made = []
    for _ in range(2):
        cache.get(weight, "a", lambda: made.append(1) or paddle.ones([1]))
    assert len(made) == 2
