"""What a reader sees of a page is what is kept."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.data.html_text import declared_charset, html_to_text

PAGE = """<!DOCTYPE html><html><head><title>T</title><style>p {color: red}</style></head>
<body><script>var x = "<p>no</p>";</script>
<h1>Head  line</h1><p>First &lt;para&gt;
wraps&nbsp;here.</p><ul><li>one</li><li><b>t</b>wo</li></ul>
<pre>def f():
    return  1
</pre><!-- comment --><table><tr><td>a</td><td>b</td></tr></table>
<svg><text>hidden</text></svg>end</body></html>"""


def test_page() -> None:
    assert html_to_text(PAGE) == (
        "Head line\n\nFirst <para> wraps here.\n\none\ntwo\n\n"
        "def f():\n    return  1\n\na\tb\n\nend\n"
    )


@pytest.mark.parametrize(
    "markup",
    [
        "<head><title>x<body>kept",
        "kept<script>never closed",
        "<p>kept",
        "<svg><svg></svg></svg>kept",
    ],
)
def test_broken_markup(markup: str) -> None:
    assert html_to_text(markup) == "kept\n"


@given(markup=st.text(alphabet="<>/!-&;ab \n\"'=", max_size=60))
def test_any_markup_is_read(markup: str) -> None:
    assert "<script" not in html_to_text(markup)


def test_charsets() -> None:
    assert declared_charset(b'<meta http-equiv="x" content="text/html; charset=GBK">') == "GBK"
    assert declared_charset(b"<meta charset=utf-8>") == "utf-8"
    assert declared_charset(b"<p>charset</p>") is None


def test_long_runs_of_spaces_take_linear_time() -> None:
    spaces = " " * 200_000
    started = time.process_time()
    assert html_to_text(f"<pre>a{spaces}b{spaces}</pre><p>c") == f"a{spaces}b\n\nc\n"
    assert time.process_time() - started < 5, "quadratic, it would be some minutes"
