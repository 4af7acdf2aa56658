"""Pages by content: sharing, the order in which they go, and what a version change leaves."""

import numpy as np
import pytest

from paddle_ernie.ops.paged_attention import KVPages
from paddle_ernie.serve.engine.prefix_cache import PrefixCache, next_key, root_key


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(KVPages(1, 6, 1, 8), version=0, moe_k=2, enabled=True)


def keys_of(cache: PrefixCache, *pages: int) -> list[bytes]:
    keys = []
    for page in pages:
        keys.append(next_key(keys[-1] if keys else cache.root, [page] * 64))
    return keys


def fill(cache: PrefixCache, keys: list[bytes], routes=None) -> list[int]:
    """Pages of a sequence that computed all of `keys`."""
    return [cache.add(key, cache.allocate(1)[0], routes) for key in keys]


def test_a_key_says_version_top_k_and_all_that_came_before():
    roots = {root_key(version, k) for version in (0, 1, 11) for k in (1, 2)}
    assert len(roots) == 6
    assert len({next_key(root, [1]) for root in roots} | {next_key(root_key(0, 1), [2])}) == 7


def test_hits_are_leading_pages(cache):
    keys = keys_of(cache, 1, 2, 3)
    fill(cache, keys[:2])
    assert cache.hits(keys, routes=False) == 2
    assert cache.hits(keys[1:], routes=False) == 1
    assert cache.hits(keys_of(cache, 2, 1), routes=False) == 0


def test_with_routes_only_pages_that_have_them(cache):
    first, second = keys_of(cache, 1, 2)
    routes = np.zeros((64, 2, 2), np.uint8)
    pages = fill(cache, [first], routes) + fill(cache, [second])
    assert cache.hits([first, second], routes=True) == 1
    again = cache.add(second, cache.allocate(1)[0], routes)
    assert again == pages[1]
    assert cache.hits([first, second], routes=True) == 2
    assert cache.use(second).routes is routes


def test_two_that_computed_the_same_share_one_page(cache):
    (key,) = keys_of(cache, 1)
    (page,) = fill(cache, [key])
    assert fill(cache, [key]) == [page]
    assert cache.pages.num_free == 5
    cache.leave([key], [page])
    assert cache.num_idle([key]) == 0
    cache.leave([key], [page])
    assert cache.num_idle([key]) == 1
    assert cache.num_available == 6


def test_the_least_recently_used_go_first_and_ends_before_beginnings(cache):
    old, new = keys_of(cache, 1, 2), keys_of(cache, 3, 4)
    old_pages, new_pages = fill(cache, old), fill(cache, new)
    cache.leave(old, old_pages)
    cache.leave(new, new_pages)
    cache.use(old[0])
    cache.leave(old[:1], old_pages[:1])
    assert cache.pages.num_free == 2
    gone = []
    for _ in range(4):
        cache.allocate(cache.pages.num_free + 1)
        left = {key for key in old + new if cache.hits([key], routes=False)}
        gone.append(({*old, *new} - left) - {key for step in gone for key in step})
    assert gone == [{old[1]}, {new[1]}, {new[0]}, {old[0]}]


def test_pages_in_use_never_go(cache):
    keys = keys_of(cache, 1, 2)
    fill(cache, keys)
    assert cache.num_available == 4
    cache.allocate(4)
    with pytest.raises(KeyError):
        cache.allocate(1)


def test_after_clear_nothing_is_known_and_users_keep_their_pages(cache):
    keys = keys_of(cache, 1, 2)
    pages = fill(cache, keys)
    cache.clear(version=1, moe_k=2)
    assert len(cache) == 0
    assert cache.num_available == 4
    assert cache.hits(keys, routes=False) == 0
    cache.leave([], pages)
    assert cache.num_available == 6
