import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import paddle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_ernie.serve.route_store import RouteStore, StoreFormat, clear_store, read_rollout
from paddle_ernie.utils.errors import InputError

UUID = "d9f16c5c-65f6-4815-b44d-14e2c581907c"
SMALL = StoreFormat(layers=3, top_k=2, num_experts=8, max_model_len=10)
LARGE = SMALL._replace(num_experts=300)


def make(rows: int, form: StoreFormat) -> np.ndarray:
    dtype = np.uint8 if form.num_experts < 256 else np.uint16
    shape = (rows, form.layers, form.top_k)
    routes = np.random.default_rng(rows).integers(0, form.num_experts, shape).astype(dtype)
    if rows:
        routes[rows // 2, 1] = np.iinfo(dtype).max
    return routes


def request(name: str) -> str:
    return f"chatcmpl-{name}-{UUID}_0"


@pytest.mark.parametrize("form", [SMALL, LARGE], ids=["uint8", "wider"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 9, 10])
def test_round_trip(tmp_path, form, fused, rows):
    form = form._replace(fused=fused)
    routes = make(rows, form)
    RouteStore(tmp_path, form).put(request("a:0:0:0"), routes)
    found = read_rollout(tmp_path, "a:0:0:0", tokens=rows + 1, num_experts=form.num_experts)
    assert found.dtype == routes.dtype
    np.testing.assert_array_equal(found, routes)


def test_layout_of_a_file_per_layer(tmp_path):
    """As FastDeploy's trainers read it: paddle.load, [max_model_len, k], padded."""
    routes = make(4, SMALL)
    folder = RouteStore(tmp_path / "new" / "store", SMALL).put(request("a:0:0:0"), routes)
    assert folder == tmp_path / "new" / "store" / "a:0:0:0"
    names = [f"layer_{i}.pdtensor" for i in range(3)]
    assert sorted(path.name for path in folder.iterdir()) == names
    for layer, name in enumerate(names):
        tensor = paddle.load(str(folder / name))
        assert (tensor.dtype, tensor.shape) == (paddle.uint8, [10, 2])
        np.testing.assert_array_equal(tensor.numpy()[:4], routes[:, layer])
        assert (tensor.numpy()[4:] == 255).all()


def test_layout_of_a_fused_file(tmp_path):
    routes = make(4, LARGE)
    folder = RouteStore(tmp_path, LARGE._replace(fused=True)).put(request("a"), routes)
    assert [path.name for path in folder.iterdir()] == ["a.pdtensor"]
    tensor = paddle.load(str(folder / "a.pdtensor"))
    assert (tensor.dtype, tensor.shape) == (paddle.int32, [3, 10, 2])
    signed = np.where(routes == 65_535, -1, routes.astype(np.int64)).transpose(1, 0, 2)
    np.testing.assert_array_equal(tensor.numpy()[:, :4], signed)
    assert (tensor.numpy()[:, 4:] == -1).all()


@pytest.mark.parametrize("save_tensor", [True, False], ids=["tensor", "array"])
def test_other_writers_files(tmp_path, save_tensor):
    """int32 with -1, as FastDeploy's first releases; an array that is no tensor; shorter files."""
    (tmp_path / "r").mkdir()
    stored = np.array([[3, 1], [-1, -1], [0, 7]], np.int32)
    value = paddle.to_tensor(stored) if save_tensor else stored
    paddle.save(value, str(tmp_path / "r" / "layer_0.pdtensor"))
    found = read_rollout(tmp_path, "r", tokens=4, num_experts=8)
    assert found.dtype == np.uint8
    assert found[:, 0].tolist() == [[3, 1], [255, 255], [0, 7]]


def test_what_stands_in_the_last_tokens_row_is_not_read(tmp_path):
    """FastDeploy may leave a stale record there."""
    (tmp_path / "r").mkdir()
    paddle.save(paddle.full([2, 1], 99, "int32"), str(tmp_path / "r" / "layer_0.pdtensor"))
    paddle.save(paddle.to_tensor([[4], [99]]), str(tmp_path / "r" / "layer_0.pdtensor"))
    assert read_rollout(tmp_path, "r", tokens=2, num_experts=8).tolist() == [[[4]]]


def test_a_rollout_that_is_written_again_is_replaced(tmp_path):
    store = RouteStore(tmp_path, SMALL)
    store.put(request("a"), make(9, SMALL))
    store.put(request("a"), make(2, SMALL))
    found = read_rollout(tmp_path, "a", tokens=3, num_experts=8)
    np.testing.assert_array_equal(found, make(2, SMALL))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_choices_of_one_request_share_a_name(tmp_path):
    """They end at about the same time, each written by a thread of its own."""
    store = RouteStore(tmp_path, SMALL)
    with ThreadPoolExecutor(8) as threads:
        choices = [request("a").replace("_0", f"_{i}") for i in range(40)]
        list(threads.map(lambda choice: store.put(choice, make(2, SMALL)), choices))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    found = read_rollout(tmp_path, "a", tokens=3, num_experts=8)
    np.testing.assert_array_equal(found, make(2, SMALL))


def test_only_the_last_turn(tmp_path):
    store = RouteStore(tmp_path, SMALL, only_last_turn=True)
    for name in ("e:1:0:0", "e:1:1:0", "e:2:0:0", "e:1:2:0", "unnumbered", "e:x:0"):
        store.put(request(name), make(2, SMALL))
    left = {"e:1:2:0", "e:2:0:0", "unnumbered", "e:x:0"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    store = RouteStore(tmp_path, SMALL)
    store.put(request("a"), make(2, SMALL))

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(paddle, "save", full)
    with pytest.raises(OSError, match="disk full"):
        store.put(request("a"), make(3, SMALL))
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert len(read_rollout(tmp_path, "a", tokens=3, num_experts=8)) == 2


# What is there at the start.


def test_rollouts_of_an_earlier_server_are_removed(tmp_path):
    RouteStore(tmp_path, SMALL).put(request("a"), make(2, SMALL))
    RouteStore(tmp_path, SMALL._replace(fused=True)).put(request("b"), make(2, SMALL))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    (tmp_path / ".writing-x").mkdir()  # of one that was killed
    clear_store(tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_nothing_else_is_removed(tmp_path, kind):
    RouteStore(tmp_path / "store", SMALL).put(request("a"), make(2, SMALL))
    other = tmp_path / "store" / "z"
    if kind == "file":
        other.write_text("mine")
    elif kind == "folder":
        (other / "deep").mkdir(parents=True)
        (other / "deep" / "notes.txt").write_text("mine")
    else:
        other.symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(InputError, match="has z, which is no rollout; expected an empty folder"):
        clear_store(tmp_path / "store")
    assert other.exists()
    assert (tmp_path / "store" / "a").exists()


# Names from clients.

BAD_NAMES = ["..", ".", ".hidden", "a/b", "/etc", "../up", "a\\b", "a\0b", "a\nb", "x" * 241]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_stay_inside_the_folder(tmp_path, name):
    store = RouteStore(tmp_path / "store", SMALL)
    with pytest.raises(InputError, match="cannot name a folder"):
        store.put(request(name), make(2, SMALL))
    with pytest.raises(InputError, match="cannot name a folder"):
        read_rollout(tmp_path / "store", name, tokens=3, num_experts=8)
    assert [path.name for path in tmp_path.rglob("*")] == ["store"]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(min_size=1, max_size=60))
def test_any_name_is_refused_or_kept_inside(tmp_path, name):
    before = sorted(os.listdir(tmp_path.parent))
    store = RouteStore(tmp_path / "store", SMALL)
    try:
        folder = store.put(f"chatcmpl-{name}-{UUID}", make(2, SMALL))
    except InputError as error:
        assert "cannot name a folder" in str(error)
    else:
        assert folder.resolve().parent == (tmp_path / "store").resolve()
    assert sorted(os.listdir(tmp_path.parent)) == before


def test_the_turn_before_stays_inside_too(tmp_path):
    outside = tmp_path / "0:0"
    outside.mkdir()
    store = RouteStore(tmp_path / "store", SMALL, only_last_turn=True)
    with pytest.raises(InputError, match="cannot name a folder"):
        store.put(request("../:1:0"), make(2, SMALL))
    assert outside.exists()


# Errors.


@pytest.mark.parametrize("shape", [(11, 3, 2), (2, 2, 2), (2, 3, 1)])
def test_routes_of_another_shape(tmp_path, shape):
    with pytest.raises(InputError, match=r"expected at most \[10, 3, 2\]"):
        RouteStore(tmp_path, SMALL).put(request("a"), np.zeros(shape, np.uint8))
    assert not [*tmp_path.iterdir()]


def test_completions_have_no_rollout(tmp_path):
    with pytest.raises(InputError, match="has no rollout id"):
        RouteStore(tmp_path, SMALL).put(f"cmpl-a-{UUID}", make(2, SMALL))


@pytest.mark.parametrize("there", [True, False])
def test_no_rollout(tmp_path, there):
    if there:
        (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match=r"a: no routes; expected a.pdtensor or layer_0.pdtensor"):
        read_rollout(tmp_path, "a", tokens=3, num_experts=8)


def write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(value))


def test_files_that_are_no_routes(tmp_path):
    file = tmp_path / "a" / "layer_0.pdtensor"
    for value, message in (
        (np.zeros((2, 2)), "float64"),
        (np.zeros(2, np.int32), "with 2 axes"),
        ("text", "no array"),
        (("name", 3), "no array"),
    ):
        write(file, value)
        with pytest.raises(InputError, match=message):
            read_rollout(tmp_path, "a", tokens=3, num_experts=8)
    file.unlink()
    for name, shape in (("layer_0", (2, 2)), ("layer_1", (3, 2))):
        write(tmp_path / "a" / f"{name}.pdtensor", np.zeros(shape, np.uint8))
    with pytest.raises(InputError, match=r"layers of shapes \[\[2, 2\], \[3, 2\]\]"):
        read_rollout(tmp_path, "a", tokens=3, num_experts=8)
    file.rename(tmp_path / "a" / "layer_2.pdtensor")
    with pytest.raises(
        InputError, match=r"layer_0.pdtensor: not there; expected one file for every"
    ):
        read_rollout(tmp_path, "a", tokens=3, num_experts=8)


@pytest.mark.parametrize(("tokens", "message"), [(4, "2 rows; expected 3"), (3, "has expert 9")])
def test_routes_of_another_model_or_sequence(tmp_path, tokens, message):
    write(tmp_path / "a" / "layer_0.pdtensor", np.array([[0, 1], [2, 9]], np.int32))
    with pytest.raises(InputError, match=message):
        read_rollout(tmp_path, "a", tokens=tokens, num_experts=8)


class Planted:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("planted",)


def test_reading_calls_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a" / "layer_0.pdtensor", Planted())
    with pytest.raises(InputError, match=r"not an array of paddle.save \(it names"):
        read_rollout(tmp_path, "a", tokens=3, num_experts=8)
    assert not (tmp_path / "planted").exists()


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # numpy's own
def test_damaged_files_are_reported_or_read(tmp_path, data):
    """A byte changed, or the end cut off."""
    whole = pickle.dumps(("name", np.arange(6, dtype=np.uint8).reshape(3, 2)))
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    changed = bytes([data.draw(st.integers(0, 255))])
    path = tmp_path / "a" / "layer_0.pdtensor"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(whole[:at] if cut else whole[:at] + changed + whole[at + 1 :])
    try:
        found = read_rollout(tmp_path, "a", tokens=3, num_experts=8)
    except InputError:
        return
    assert found.shape[0] == 2
    assert found.dtype == np.uint8


def test_reading_does_without_paddle(tmp_path):
    RouteStore(tmp_path, SMALL).put(request("a"), make(2, SMALL))
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from paddle_ernie.serve.route_store import read_rollout\n"
        "print(read_rollout(Path(sys.argv[1]), 'a', tokens=3, num_experts=8).shape)\n"
        "assert 'paddle' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.strip() == "(2, 3, 2)"
