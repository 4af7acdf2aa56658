"""Manual pages as a reader sees them."""

from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.data.roff_text import plain, roff_to_text

PAGE = r""".\" A comment.
.TH LS 1 2022 "GNU coreutils" "User Commands"
.de XX
macro body
..
.SH NAME
ls \- list "files" \(bu \fBbold\fP and \f[I]italic\f[R]
.SH "SEE ALSO"
.PP
Flowing text,
.I emphasised
and
.BR stat (2),
.TP
\fB\-a\fR, \fB\-\-all\fR
do not ignore \(aq.\(aq
.nf
int main(void)
{
    return 0;
}
.fi
.TS
table
.TE
.IP \(bu 2
中文一行
中文二行 \e\ \[u4E2D]\s-1x\s0\" comment
"""


def test_page() -> None:
    assert roff_to_text(PAGE) == (
        'NAME\n\nls - list "files" • bold and italic\n\nSEE ALSO\n\n'
        "Flowing text, emphasised and stat(2),\n-a, --all do not ignore '.'\n"
        "int main(void)\n{\n    return 0;\n}\n\n•\n中文一行中文二行 \\ 中x\n"
    )


def test_page_that_includes_another_is_empty() -> None:
    assert roff_to_text(".so man1/ls.1\n").strip() == ""


@given(text=st.text(alphabet="\\.f(BR[]'*s-+ab \"u0\n中", max_size=60))
def test_any_source_is_read(text: str) -> None:
    roff_to_text(text)
    assert "\\f" not in plain(text.replace("\\\\", "").replace("\\e", ""))
