"""Loading: one parent, every fault with file, line, key and value, and a faithful resolved file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_ernie.config.loader import dump_yaml, load_config, load_document, merge, resolve
from paddle_ernie.config.source import Document, Place, parse_yaml
from paddle_ernie.config.stages import PipelineConfig, PretrainConfig
from paddle_ernie.utils.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "fastdeploy" / "kubernetes"  # not configurations of ours
OUR_FILES = sorted(
    path
    for folder in ("configs", "deploy")
    for path in (ROOT / folder).rglob("*.y*ml")
    if KUBERNETES not in path.parents
)
SMALL = """\
stage: pretrain
run: {output_dir: out}
model: {hidden_size: 64}
data:
  sources:
  - format: python_stdlib
train:
  max_steps: 20
"""
WriteYaml = Callable[..., Path]


def fault_text(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", OUR_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_of_the_project_loads_and_survives_a_round_trip(path: Path) -> None:
    config = load_config(path)
    text = dump_yaml(config)
    assert resolve(parse_yaml(text, "resolved")) == config
    assert dump_yaml(resolve(parse_yaml(text, "resolved"))) == text


def test_there_are_files_to_load() -> None:
    names = {str(path.relative_to(ROOT)) for path in OUR_FILES}
    assert {"configs/quickstart.yaml", "configs/pretrain/debug.yaml"} <= names


def test_values_and_defaults(write_yaml: WriteYaml) -> None:
    config = load_config(write_yaml(SMALL), ["train.learning_rate=2e-3", "eval.subnets.s.layers=2"])
    assert isinstance(config, PretrainConfig)
    assert config.model is not None
    assert config.model.hidden_size == 64 and config.train.max_steps == 20
    assert config.train.learning_rate == 2e-3 and config.eval.subnets["s"].layers == 2
    assert config.run.output_dir == Path("out") and config.checkpoint.keep == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    learning_rate=st.floats(1e-9, 10),
    epsilon=st.floats(1e-30, 1e-3),
    name=st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8),
    prompts=st.lists(st.sampled_from(["a\nb", " x", "1e5", "null", "", "é", '"']), max_size=3),
)
def test_a_resolved_file_gives_the_same_configuration(
    learning_rate: float, epsilon: float, name: str, prompts: list[str]
) -> None:
    document = parse_yaml(SMALL, "f")
    document.value["train"] |= {"learning_rate": learning_rate, "adam_epsilon": epsilon}
    document.value["data"]["sources"][0]["name"] = name
    document.value["monitor"] = {"sample_prompts": prompts}
    config = resolve(document)
    assert resolve(parse_yaml(dump_yaml(config), "resolved")) == config


@pytest.mark.parametrize(
    ("wrong", "line", "words"),
    [
        ("  max_step: 20", 8, ["train.max_step = 20", "unknown key", "did you mean `max_steps`?"]),
        ("  max_steps: -1", 8, ["train.max_steps = -1", "expected at least 1"]),
        ("  max_steps: '20'", 8, ['train.max_steps = "20"', "expected an integer"]),
        ("  max_steps: 2.5", 8, ["train.max_steps = 2.5", "expected an integer"]),
        ("  max_steps: true", 8, ["train.max_steps = true", "expected an integer"]),
        ("  max_steps:", 8, ["train.max_steps = null", "expected an integer"]),
        ("  max_steps: [1]", 8, ["train.max_steps = [1]", "expected an integer"]),
        ("  global_batch_size: 8", 7, ["train.max_steps", "required, but absent"]),
        (
            "  max_steps: 9\n  recompute: yes",
            9,
            ["train.recompute = yes", "expected true or false"],
        ),
        ("  max_steps: 9\n  learning_rate: .nan", 9, ["train.learning_rate = NaN"]),
        ("  max_steps: 9\n  vocab_size: 9", 9, ["unknown key here", "belongs to `model`"]),
        ("  max_steps: 9\n  qqqqqq: 9", 9, ["unknown key; valid here: max_steps, global_batch"]),
        (
            "  max_steps: 9\n  lr_scheduler_type: cosin",
            9,
            ["train.lr_scheduler_type = cosin", "expected wsd, cosine, constant", "mean cosine?"],
        ),
        (
            "  max_steps: 9\n  warmup_steps: 10",
            8,
            ["train.max_steps = 9", "warmup_steps 10 + decay_steps 0 exceed max_steps 9"],
        ),
    ],
)
def test_a_fault_names_line_key_value_and_remedy(
    write_yaml: WriteYaml, wrong: str, line: int, words: list[str]
) -> None:
    path = write_yaml(SMALL.replace("  max_steps: 20", wrong))
    text = fault_text(path)
    assert text.startswith(f"{path}: 1 fault\n{path}:{line}  "), text
    for word in words:
        assert word in text


def test_all_faults_come_together_in_the_order_of_the_file(write_yaml: WriteYaml) -> None:
    wrong = SMALL.replace("64", "four").replace("max_steps", "max_step") + "evil: 1\n"
    path = write_yaml(wrong.replace("- format: python_stdlib", "- format: text"))
    text = fault_text(path, "run.seed=-1")
    assert text.splitlines()[0] == f"{path}: 5 faults"
    found = [line.split("  ")[0] for line in text.splitlines()[1::2]]
    assert found == [f"{path}:{line}" for line in (3, 6, 8, 9)] + ["-o run.seed=-1"]
    assert "did you mean `eval`?" in text


def test_a_report_of_many_faults_fits_a_screen(write_yaml: WriteYaml) -> None:
    path = write_yaml(SMALL + "".join(f"unknown_{i}: 1\n" for i in range(50)))
    lines = fault_text(path).splitlines()
    assert lines[0].endswith("50 faults") and len(lines) <= 24
    assert lines[-1].startswith("and 41 more")


def test_a_huge_value_is_cut(write_yaml: WriteYaml) -> None:
    text = fault_text(write_yaml(SMALL), f"train.max_steps={'x' * 5000}")
    assert max(map(len, text.splitlines())) < 200


def test_faults_between_sections_have_places_too(write_yaml: WriteYaml) -> None:
    path = write_yaml(SMALL + "elastic:\n  depth:\n    min_layers: 6\n")
    text = fault_text(path, "data.max_seq_len=8192")
    assert f"{path}:11  elastic.depth.min_layers = 6\n    expected less than the model's" in text
    assert "-o data.max_seq_len=8192  data.max_seq_len = 8192\n    expected at most" in text


def test_faults_in_pipeline_steps(write_yaml: WriteYaml) -> None:
    path = write_yaml(
        "stage: pipeline\nrun: {output_dir: out}\ndata: {sources: [{format: python_stdlib}]}\n"
        "stages:\n"
        "- kind: pretrain\n  name: a\n  model: {}\n  train:\n    max_step: 3\n"
        "- kind: extract\n  name: b\n  init_from: a\n  extract:\n    subnet: {layers: x}\n"
        "- kind: extrct\n  name: c\n"
        "- name: d\n"
        "- kind: samples\n  name: 1x\n  models: []\n  prompts: [a]\n"
    )
    text = fault_text(path)
    for expected in (
        ":9  stages.0.train.max_step = 3\n    unknown key; did you mean `max_steps`?",
        ":14  stages.1.extract.subnet.layers = x\n    expected an integer or a list",
        ":15  stages.2.kind = extrct\n    expected tokenizer, pretrain, extract, samples, report; "
        "did you mean extract?",
        ":17  stages.3\n    `kind` is required, but absent",
        ":19  stages.4.name = 1x\n    expected text that matches",
        ":20  stages.4.models = []\n    expected at least 1 entry",
    ):
        assert f"{path}{expected}" in text, text


def test_pipeline_names(write_yaml: WriteYaml) -> None:
    head = (
        "stage: pipeline\nrun: {output_dir: out}\ndata: {sources: [{format: python_stdlib}]}\n"
        "stages:\n- {kind: report, name: r}\n"
    )
    path = write_yaml(head + "- {kind: extract, name: e, init_from: r, extract: {subnet: {}}}\n")
    assert (
        ":6  stages.1.init_from = r\n    stage 'e' needs the model of 'r', which makes no model"
        in (fault_text(path))
    )
    assert ":6  stages.1.name = r\n    two stages are named 'r'" in fault_text(
        path, "stages.e.name=r"
    ).replace("-o stages.e.name=r", ":6")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["the file is empty", "`stage:`", "pretrain or extract or pipeline"]),
        ("# only a note\n", ["the file is empty"]),
        ("- a\n- b\n", [":1", "found a list", "expected a mapping"]),
        ("just text\n", [":1", "found a single value (just text)"]),
        ("run: {}\n", ["`stage` is required, but absent"]),
        ("stge: pretrain\n", [":1", "did you mean it by `stge`?"]),
        (
            "stage: pre-train\n",
            [":1", "stage = pre-train", "unknown stage", "did you mean pretrain?"],
        ),
        ("stage: [pretrain]\n", [":1", 'stage = ["pretrain"]', "unknown stage"]),
        ("stage: pretrain\nrun: 5\n", [":2", "run = 5", "expected a mapping"]),
    ],
)
def test_files_that_are_no_configuration(
    write_yaml: WriteYaml, text: str, words: list[str]
) -> None:
    path = write_yaml(text)
    found = fault_text(path)
    assert found.startswith(str(path))
    for word in words:
        assert word in found


def test_files_that_cannot_be_read(tmp_path: Path, write_yaml: WriteYaml) -> None:
    write_yaml(SMALL, "quickstart.yaml")
    missing = tmp_path / "quikstart.yaml"
    assert fault_text(missing) == (
        f"{missing}: no such file; did you mean {tmp_path / 'quickstart.yaml'}?"
    )
    assert "does not exist" in fault_text(tmp_path / "none" / "x.yaml")
    assert "is a folder" in fault_text(tmp_path)
    assert "cannot be read: Not a directory" in fault_text(tmp_path / "quickstart.yaml" / "x")
    binary = tmp_path / "model.safetensors"
    binary.write_bytes(b"stage: x\n\xff\xfe")
    assert f"{binary}:2: byte 0xff is not UTF-8 text" in fault_text(binary)
    assert "more than 4,000,000 bytes" in fault_text(Path("/dev/zero"))


def test_a_file_with_a_byte_order_mark_loads(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load_config(path).stage == "pretrain"


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, SMALL.encode())
    os.close(writer)
    assert load_config(f"/dev/fd/{reader}").stage == "pretrain"
    os.close(reader)


def test_base_is_laid_under_the_file(write_yaml: WriteYaml, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_yaml(SMALL + "eval: {subnets: {a: {layers: 2}}}\n", "parent.yaml")
    child = write_yaml(
        "base: ../parent.yaml\ntrain: {learning_rate: 5e-4}\n"
        "data: {sources: [{path: a}, {path: b}]}\neval: {subnets: {b: {layers: 3}}}\n",
        "sub/child.yaml",
    )
    config = load_config(child)
    assert isinstance(config, PretrainConfig)
    assert (config.train.max_steps, config.train.learning_rate) == (20, 5e-4)
    assert [source.path for source in config.data.sources] == [Path("a"), Path("b")]
    assert set(config.eval.subnets) == {"a", "b"}


def test_faults_name_the_file_they_stand_in(write_yaml: WriteYaml, tmp_path: Path) -> None:
    parent = write_yaml(SMALL + "evl: 1\n", "parent.yaml")
    child = write_yaml("base: parent.yaml\n\ntrain:\n  max_stps: 1\n", "child.yaml")
    text = fault_text(child)
    assert f"{parent}:9  evl = 1" in text and f"{child}:4  train.max_stps = 1" in text


def test_two_levels_of_bases_are_refused(write_yaml: WriteYaml) -> None:
    write_yaml(SMALL, "a.yaml")
    parent = write_yaml("# b\nbase: a.yaml\n", "b.yaml")
    text = fault_text(write_yaml("base: b.yaml\n", "c.yaml"))
    assert text.startswith(f"{parent}:2  base = a.yaml\n    at most one parent")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("self.yaml", "names itself"),
        ("missing.yaml", "no such file"),
        ("[a.yaml, b.yaml]", "expected the path of one YAML file"),
        ("''", "expected the path of one YAML file"),
    ],
)
def test_bases_that_cannot_be(write_yaml: WriteYaml, name: str, words: str) -> None:
    path = write_yaml(f"stage: pretrain\nbase: {name}\n", "self.yaml")
    text = fault_text(path)
    assert text.startswith(f"{path}:2  base = ") and words in text


def test_bases_that_name_each_other_are_refused(write_yaml: WriteYaml) -> None:
    write_yaml("base: b.yaml\n", "a.yaml")
    assert "at most one parent" in fault_text(write_yaml("base: a.yaml\n", "b.yaml"))


KEYS = st.sampled_from("abc")
TREES = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, TREES, max_size=3), st.dictionaries(KEYS, TREES, max_size=3))
def test_merge_keeps_values_and_places_together(base: dict, child: dict) -> None:
    """Reference: a recursive dictionary merge; every leaf's place is the file it came from."""

    def expected(low: object, high: object) -> object:
        if not (isinstance(low, dict) and isinstance(high, dict)):
            return high
        return {
            key: expected(low[key], high[key])
            if key in low and key in high
            else {**low, **high}[key]
            for key in {**low, **high}
        }

    def document(value: object, source: str) -> Document:
        places: dict = {}

        def visit(node: object, path: tuple) -> None:
            places[path] = Place(source, len(places))
            for key, inner in node.items() if isinstance(node, dict) else ():
                visit(inner, (*path, key))

        visit(value, ())
        return Document(value, places)

    merged = merge(document(base, "base"), document(child, "child"))
    assert merged.value == expected(base, child)

    def check(node: object, low: object, high: object, path: tuple) -> None:
        if isinstance(node, dict):
            for key, inner in node.items():
                low_in = low.get(key) if isinstance(low, dict) else None
                in_high = isinstance(high, dict) and key in high
                assert merged.places[(*path, key)].source == ("child" if in_high else "base")
                check(inner, low_in, high[key] if in_high else None, (*path, key))

    check(merged.value, base, child, ())


def test_documents_are_not_shared_with_the_files(write_yaml: WriteYaml) -> None:
    path = write_yaml(SMALL)
    first = load_document(path, ["train.max_steps=1"])
    assert load_document(path).value["train"]["max_steps"] == 20
    assert first.value["train"]["max_steps"] == 1


def test_a_pipeline_is_told_apart(write_yaml: WriteYaml) -> None:
    config = load_config(
        ROOT / "configs" / "quickstart.yaml", ["stages.pretrain.train.max_steps=999"]
    )
    assert isinstance(config, PipelineConfig)
    assert next(s for s in config.stages if s.name == "pretrain").train.max_steps == 999


def test_a_key_of_any_length_is_cut(write_yaml: WriteYaml) -> None:
    text = fault_text(write_yaml(SMALL), f"{'x' * 3000}=1")
    assert max(map(len, text.splitlines())) < 250


def test_a_base_that_is_a_folder_is_said_with_the_line_that_names_it(write_yaml: WriteYaml) -> None:
    path = write_yaml("stage: pretrain\nbase: .\n")
    assert f"{path}:2  base = .\n    is a folder: {path.parent}" in fault_text(path)
