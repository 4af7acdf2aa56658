import hashlib
import json

import pytest

from paddle_ernie.utils.errors import CheckpointError
from paddle_ernie.utils.manifest import verify_manifest, write_manifest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "weights.bin").write_bytes(bytes(range(200)))
    (tmp_path / "empty").touch()
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "state.json").write_text("{}")
    write_manifest(tmp_path)
    return tmp_path


def test_content(folder):
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert sorted(files) == ["empty", "part/state.json", "weights.bin"]
    digest = hashlib.sha256(bytes(range(200))).hexdigest()
    assert files["weights.bin"] == {"size": 200, "sha256": digest}


def test_whole_folder_passes_and_new_files_do_not_matter(folder):
    (folder / "extraction.json").write_text("{}")
    verify_manifest(folder)


@pytest.mark.parametrize("at", range(0, 200, 13))
def test_every_altered_byte_is_found(folder, at):
    content = bytearray((folder / "weights.bin").read_bytes())
    content[at] ^= 0x10
    (folder / "weights.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"weights\.bin: altered"):
        verify_manifest(folder)


@pytest.mark.parametrize("size", [0, 1, 199, 201])
def test_every_wrong_size_is_found(folder, size):
    content = (folder / "weights.bin").read_bytes() + b"!"
    (folder / "weights.bin").write_bytes(content[:size])
    with pytest.raises(CheckpointError, match=f"weights.bin: {size} bytes, expected 200"):
        verify_manifest(folder)


def test_missing_files(folder):
    (folder / "part" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"part/state\.json: missing"):
        verify_manifest(folder)
    with pytest.raises(CheckpointError, match=r"nowhere/manifest\.json: missing"):
        verify_manifest(folder / "nowhere")


def test_required_files_must_be_listed(folder):
    verify_manifest(folder, required=("weights.bin", "part/state.json"))
    (folder / "late.bin").write_bytes(b"not in the manifest")
    with pytest.raises(CheckpointError, match=r"manifest\.json: does not list late\.bin"):
        verify_manifest(folder, required=("weights.bin", "late.bin"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": {"a": {}}}'])
def test_broken_manifests(folder, text):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="not a manifest"):
        verify_manifest(folder)


def test_known_digests_are_taken_over(folder):
    write_manifest(folder, {"weights.bin": "0" * 64})
    with pytest.raises(CheckpointError, match="expected 0000"):
        verify_manifest(folder)
