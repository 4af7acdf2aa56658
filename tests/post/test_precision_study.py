import json

import pytest
import yaml

from paddle_ernie.post.precision_study import (
    FORMATS,
    Outcome,
    differences,
    outcomes_of,
    run_study,
    table,
    to_json,
)
from paddle_ernie.utils.errors import InputError

OUTCOMES = [
    Outcome("fp32", 1, "base", 2.0, 100.0),
    Outcome("bf16", 1, "base", 2.02, 250.0),
    Outcome("fp32", 2, "base", 4.0, 110.0),
    Outcome("bf16", 2, "base", 3.96, 260.0),
]


def test_losses_are_compared_seed_by_seed():
    relative = differences(OUTCOMES)
    assert relative["base", "fp32"] == [0.0, 0.0]
    assert relative["base", "bf16"] == pytest.approx([0.01, -0.01])
    assert to_json(OUTCOMES)["relative_to_fp32"]["base/bf16"] == pytest.approx(0)


def test_the_table_has_a_line_per_stage_and_format():
    texts = table(OUTCOMES).texts
    assert texts[1] == ["base", "bf16", "2.0200", "3.9600", "2.9900", "+0.000%", "255"]


def test_a_folder_without_a_trained_stage(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "summary.json").write_text(json.dumps({"kind": "tokenizer"}))
    with pytest.raises(InputError, match="no finished training stage"):
        outcomes_of(tmp_path, "fp32", 1)


@pytest.mark.slow
def test_a_tiny_pipeline_in_every_format(tmp_path):
    """Whole runs: formats give different losses that lie close together."""
    text = tmp_path / "text"
    text.mkdir()
    for i in range(200):
        sentence = f"{i} apples and {i + 1} pears make {2 * i + 1} fruits. "
        (text / f"{i}.txt").write_text(sentence * 9)
    model = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 96, "moe_num_experts": 4, "moe_k": 2,
        "moe_intermediate_size": 32,
    }  # fmt: skip
    config = {
        "stage": "pipeline",
        "run": {"output_dir": str(tmp_path / "unused")},
        "data": {
            "sources": [{"path": str(text)}],
            "tokenizer": {"vocab_size": 512},
            "max_seq_len": 64,
            "valid_fraction": 0.1,
        },
        "stages": [
            {
                "kind": "pretrain", "name": "base", "model": model,
                "train": {"max_steps": 20, "global_batch_size": 8},
                "eval": {"eval_rows": 4, "final_eval_rows": 8},
            }
        ],
    }  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    outcomes = run_study(path, [1], tmp_path / "study")
    losses = {outcome.format: outcome.loss for outcome in outcomes}
    assert set(losses) == set(FORMATS)
    assert len(set(losses.values())) == len(FORMATS)
    assert max(losses.values()) < 1.05 * min(losses.values())
    assert run_study(path, [1], tmp_path / "study") == outcomes
