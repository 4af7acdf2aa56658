"""The catalogue is consistent, and names are looked up helpfully."""

import pytest

from paddle_ernie.data.catalog import PACKAGES, select
from paddle_ernie.data.package_text import READERS
from paddle_ernie.utils.errors import InputError


def test_entries_are_complete() -> None:
    names = [package.name for package in PACKAGES]
    assert len(set(names)) == len(names)
    for package in PACKAGES:
        assert package.reading in READERS
        assert package.licence and package.kind and package.include and package.package
        assert package.download_mb > 0 < package.text_mb


def test_groups_and_names_are_joined_once() -> None:
    chinese = select(["zh"])
    assert {package.language for package in chinese} == {"zh"}
    assert select(["sanguo", "zh", "sanguo"])[0].name == "sanguo"
    assert len(select(["sanguo", "zh"])) == len(chinese)
    assert select(["all"]) == list(PACKAGES)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"--packages pyton-doc: .*did you mean python-doc\?"):
        select(["pyton-doc"])
