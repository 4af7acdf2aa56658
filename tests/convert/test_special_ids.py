"""Which tokens end a text, from tokenizer files."""

import json

import pytest

from paddle_ernie.convert.special_ids import SpecialIds, read_special_ids
from paddle_ernie.utils.errors import InputError

ADDED = [
    {"id": 0, "content": "<s>"},
    {"id": 2, "content": "</s>"},
    {"id": 7, "content": "<|im_end|>"},
    {"id": 8, "content": "<|eot_id|>"},
]


@pytest.fixture
def folder(tmp_path):
    """folder(added tokens, config or None, template file)."""

    def write(added, config=None, template=None):
        (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("config", "template", "expected"),
    [
        (None, None, SpecialIds(bos=2, eos=(2,), pad=2)),
        (
            {"bos_token": "<s>", "eos_token": {"content": "<|eot_id|>"}, "pad_token": None},
            None,
            SpecialIds(bos=0, eos=(8,), pad=8),
        ),
        ({"chat_template": "{{ x }}<|im_end|>"}, None, SpecialIds(bos=2, eos=(2, 7), pad=2)),
        ({"eos_token": "<|im_end|>"}, "<|im_end|>", SpecialIds(bos=7, eos=(7,), pad=7)),
        (
            {"chat_template": [{"name": "default", "template": "<|eot_id|>"}]},
            None,
            SpecialIds(bos=2, eos=(2, 8), pad=2),
        ),
        ({"eos_token": "<not there>"}, None, SpecialIds(bos=2, eos=(2,), pad=2)),
    ],
)
def test_roles(folder, config, template, expected):
    assert read_special_ids(folder(ADDED, config, template)) == expected


def test_errors(folder, tmp_path):
    with pytest.raises(InputError, match=r"tokenizer.json: cannot be read as JSON"):
        read_special_ids(tmp_path)
    with pytest.raises(InputError, match="no token that ends a document; name one as eos_token"):
        read_special_ids(folder([ADDED[0]]))
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(InputError, match="expected a JSON object, found list"):
        read_special_ids(tmp_path)
