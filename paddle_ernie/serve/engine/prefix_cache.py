"""Full pages of keys and values by what they hold, for prompts that begin alike. Used by the
scheduler, which gets every page from here.

    key of page i = hash(key of page i - 1, its 64 token ids);  page -1: weights' version, moe_k

    in use     some sequences hold the page and the cache holds it once more
    idle       only the cache does; the least recently used go when pages are needed

A sequence leaves its pages last one first, so that what comes later in a text goes earlier. The
routes of a page's tokens lie beside it, if they were recorded.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paddle_ernie.ops.paged_attention import KVPages

KEY_BYTES = 16  # nobody finds two texts with one hash, not even on purpose


@dataclass
class CachedPage:
    """A full page and who uses it."""

    page: int
    routes: np.ndarray | None
    """[64, moe layers, k], or None: were not recorded."""
    users: int = 0


class PrefixCache:
    """Hands out pages and remembers full ones. Disabled, it only hands out."""

    def __init__(self, pages: KVPages, version: int, moe_k: int, *, enabled: bool) -> None:
        self.pages = pages
        self.enabled = enabled
        self.root = root_key(version, moe_k)
        """The key before the first page."""
        self._entries: dict[bytes, CachedPage] = {}
        self._idle: OrderedDict[bytes, CachedPage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can hand out."""
        return self.pages.num_free + len(self._idle)

    def allocate(self, count: int) -> list[int]:
        """Ids of `count` pages, each held once; the caller asks `num_available` first."""
        while self.pages.num_free < count:
            key, entry = self._idle.popitem(last=False)
            del self._entries[key]
            self.pages.release([entry.page])
        return self.pages.allocate(count)

    def hits(self, keys: Sequence[bytes], *, routes: bool) -> int:
        """How many leading keys are here, with their routes if asked."""
        for count, key in enumerate(keys):
            entry = self._entries.get(key)
            if entry is None or (routes and entry.routes is None):
                return count
        return len(keys)

    def num_idle(self, keys: Sequence[bytes]) -> int:
        """How many of these known keys are idle: once used, they are not available."""
        return sum(key in self._idle for key in keys)

    def use(self, key: bytes) -> CachedPage:
        """Hold the page of a known key."""
        entry = self._entries[key]
        self.pages.share([entry.page])
        entry.users += 1
        self._idle.pop(key, None)
        return entry

    def add(self, key: bytes, page: int, routes: np.ndarray | None) -> int:
        """Remember a page that the caller holds and has filled; the page to use from now on.

        If the key is known, that is the page which is here, with the same content, and the
        caller's goes back.
        """
        entry = self._entries.get(key)
        if entry is None:
            self.pages.share([page])
            self._entries[key] = CachedPage(page, routes, users=1)
            return page
        if entry.routes is None:
            entry.routes = routes
        self.pages.release([page])
        return self.use(key).page

    def leave(self, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        """Let go of a sequence's pages; the first len(keys) of them are known by these keys."""
        for key in reversed(keys):
            entry = self._entries[key]
            entry.users -= 1
            if entry.users == 0:
                self._idle[key] = entry
        self.pages.release(pages)

    def clear(self, version: int, moe_k: int) -> None:
        """Forget everything: the weights are others. Sequences keep what they hold."""
        self.pages.release([entry.page for entry in self._entries.values()])
        self._entries.clear()
        self._idle.clear()
        self.root = root_key(version, moe_k)


def root_key(version: int, moe_k: int) -> bytes:
    """What pages of these weights and this number of experts start from."""
    return hashlib.blake2b(f"{version}/{moe_k}".encode(), digest_size=KEY_BYTES).digest()


def next_key(key: bytes, ids: Sequence[int]) -> bytes:
    """The key of a page that holds `ids`, after the page of `key`."""
    digest = hashlib.blake2b(key, digest_size=KEY_BYTES)
    digest.update(np.array(ids, np.int64).tobytes())
    return digest.digest()
