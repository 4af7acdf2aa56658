"""Launch scripts, units, images and manifests: they parse, and agree with each other and us.

Nothing here starts FastDeploy; what it accepts is a list of the flags in its documentation.
"""

import configparser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from paddle_ernie.serve.flags import parse as parse_flags

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "fastdeploy"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
LAUNCHERS = sorted(FOLDER.glob("serve_*.sh"))
MANIFESTS = sorted((FOLDER / "kubernetes").glob("*.yaml"))
UNITS = sorted((FOLDER / "systemd").glob("*.service"))
IMAGES = sorted(FOLDER.glob("Dockerfile*"))
SWITCHES = {
    "--enable-prefix-caching",
    "--enable-chunked-prefill",
    "--enable-logprob",
    "--enable-expert-parallel",
    "--dynamic-load-weight",
}
VALUES = {
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--metrics-port",
    "--engine-worker-queue-port",
    "--cache-queue-port",
    "--tensor-parallel-size",
    "--data-parallel-size",
    "--max-model-len",
    "--max-num-seqs",
    "--max-concurrency",
    "--gpu-memory-utilization",
    "--load-choices",
    "--quantization",
    "--load-strategy",
    "--routing-replay-config",
    "--ips",
}
SETTINGS = dict(
    line.split("=", 1)
    for line in (FOLDER / "config.env").read_text().splitlines()
    if line and not line.startswith("#")
)


def command(script: str, *extra: str, **environment: object) -> list[str]:
    """What a script would start."""
    clean = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    settings = {name: str(value) for name, value in environment.items()}
    ran = subprocess.run(
        ["bash", FOLDER / script, *extra],
        env={**clean, "PRINT_ONLY": "1", **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.splitlines()


def flags(words: list[str]) -> dict[str, str | None]:
    """FastDeploy's flags and their values; fails at one that it does not have."""
    found: dict[str, str | None] = {}
    words = words[::-1]
    while words:
        name = words.pop()
        assert name in SWITCHES | VALUES, f"{name}: not a flag of FastDeploy's documentation"
        found[name] = None if name in SWITCHES else words.pop()
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-x", "-P", FOLDER, path], check=True)


@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda path: path.name)
def test_launchers_are_executable_and_pass_flags_on(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert command(path.name, "--max-logprobs", "a b")[-2:] == ["--max-logprobs", "a b"]


@pytest.mark.parametrize("script", ["serve_single_node.sh", "serve_rollout.sh"])
def test_flags_of_one_machine(script: str) -> None:
    words = command(script, TENSOR_PARALLEL_SIZE=4, QUANTIZATION="block_wise_fp8")
    assert words[:3] == ["python", "-m", "fastdeploy.entrypoints.openai.api_server"]
    found = flags(words[3:])
    assert found["--tensor-parallel-size"] == "4" and found["--quantization"] == "block_wise_fp8"
    ports = [found[name] for name in VALUES & set(found) if name.endswith("port")]
    assert len(ports) == len(set(ports)) == 4
    assert "--quantization" not in flags(command(script)[3:])


@pytest.mark.parametrize(
    ("script", "start"),
    [("serve_ours.sh", 2), ("serve_single_node.sh", 3), ("serve_rollout.sh", 3)],
)
def test_our_server_takes_the_flags_of_both(script: str, start: int, tmp_path: Path) -> None:
    folders = {"MODEL_DIR": tmp_path, "ROUTES_DIR": tmp_path / "routes", "WEIGHTS_DIR": tmp_path}
    words = command(script, PORT=9000, MAX_NUM_SEQS=64, LOAD_STRATEGY="normal", **folders)
    parsed = parse_flags("", words[start:])
    assert parsed.model == tmp_path
    assert parsed.settings.port == 9000 and parsed.options.max_num_seqs == 64
    assert parsed.settings.max_concurrency == 512 and parsed.settings.dynamic_load_weight is (
        script != "serve_single_node.sh"
    )
    if script == "serve_ours.sh":
        assert Path(words[1]).resolve() == FOLDER.parents[1] / "tools" / "serve.py"
        assert parsed.options.weights_dir == tmp_path


def test_several_machines_share_one_group_of_ranks() -> None:
    words = command("serve_multi_node_ep.sh", NODE_IPS="10.0.0.1,10.0.0.2", GPUS=4, PORT=9000)
    split = words.index("--args")
    found = flags(words[split + 1 :])
    assert found["--data-parallel-size"] == "8" and found["--tensor-parallel-size"] == "1"
    assert found["--ips"] == "10.0.0.1,10.0.0.2" and "--enable-expert-parallel" in found
    servers = dict(zip(words[3:split:2], words[4:split:2], strict=True))
    assert servers["--num-servers"] == "4" and servers["--ports"] == "9000,9001,9002,9003"
    lists = [servers["--ports"], servers["--metrics-ports"]]
    lists += [str(found[name]) for name in VALUES if name.endswith("queue-port")]
    ports = [port for text in lists for port in text.split(",")]
    assert len(ports) == len(set(ports)) == 16


def test_rollout_replaces_weights_and_stores_routes() -> None:
    found = flags(command("serve_rollout.sh", ROUTES_DIR="/data/routes 1")[3:])
    assert "--dynamic-load-weight" in found and "--enable-logprob" in found
    assert found["--load-strategy"] == "ipc_snapshot"
    replay = json.loads(found["--routing-replay-config"] or "")
    assert replay == {
        "enable_routing_replay": True,
        "routing_store_type": "local",
        "local_store_dir": "/data/routes 1",
    }


@pytest.mark.parametrize(
    ("script", "environment", "message"),
    [
        ("serve_single_node.sh", {"MODEL_DIR": "/nowhere"}, "/nowhere has no config.json"),
        ("serve_ours.sh", {"MODEL_DIR": "/nowhere"}, "/nowhere has no config.json"),
        (
            "serve_single_node.sh",
            {"PRINT_ONLY": "1", "GPUS": "2"},
            "TENSOR_PARALLEL_SIZE=8; expected at most GPUS=2",
        ),
        ("serve_rollout.sh", {"PRINT_ONLY": "1", "ROUTES_DIR": 'a"b'}, "without quotes"),
    ],
)
def test_what_cannot_work_is_told(script: str, environment: dict, message: str) -> None:
    ran = subprocess.run(
        ["bash", FOLDER / script], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert message in ran.stderr


def test_settings_are_plain_enough_for_every_reader() -> None:
    for line in (FOLDER / "config.env").read_text().splitlines():
        assert re.fullmatch(r"(#.*)?|[A-Z_]+=[\w./,-]*", line), line
    used = set(re.findall(r"\$\{?([A-Z_]{3,})", "".join(path.read_text() for path in SCRIPTS)))
    known = {"BASH_SOURCE", "PRINT_ONLY", "CONFIG", "PYTHON", "TOOLS_DIR", "HERE"}
    assert used - known == set(SETTINGS)


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_hang_together(path: Path) -> None:
    found = {document["kind"]: document for document in documents(path)}
    for document in found.values():
        assert document["apiVersion"] and document["metadata"]["name"] == path.stem
    workload = found.get("Deployment") or found["StatefulSet"]
    template = workload["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    pod = template["spec"]
    (container,) = pod["containers"]
    names = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} <= names
    scraped = int(template["metadata"]["annotations"]["prometheus.io/port"])
    assert scraped in {port["containerPort"] for port in container["ports"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    config, secret = container["envFrom"]
    assert config == {"configMapRef": {"name": path.stem}}
    assert secret["secretRef"]["name"] == path.stem
    assert found["ConfigMap"]["data"]["HOST"] == "0.0.0.0"  # probes come from outside
    assert set(found["ConfigMap"]["data"]) <= set(SETTINGS)
    assert all(isinstance(value, str) for value in found["ConfigMap"]["data"].values())


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_probes_leave_time_to_load(path: Path) -> None:
    (workload,) = (d for d in documents(path) if d["kind"] in ("Deployment", "StatefulSet"))
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    names = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        target = container[probe].get("httpGet") or container[probe]["tcpSocket"]
        assert target["port"] in names
        assert target.get("path") in ("/health", "/ping", None)
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    assert workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 60


def test_a_rollout_engine_gets_the_gpus_it_splits_over() -> None:
    kinds = {
        document["kind"]: document for document in documents(FOLDER / "kubernetes/fastdeploy.yaml")
    }
    (container,) = kinds["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    settings = kinds["ConfigMap"]["data"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus == settings["GPUS"] == settings["TENSOR_PARALLEL_SIZE"]
    assert (FOLDER / Path(container["command"][0]).name).is_file()


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_start_scripts_that_are_there(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False)  # a key may come twice
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read(path)
    assert {"Unit", "Service", "Install"} == set(unit.sections())
    assert (FOLDER / Path(unit["Service"]["ExecStart"]).name).is_file()
    assert "config.env" in path.read_text()
    assert int(unit["Service"]["TimeoutStopSec"]) > 60
    if shutil.which("systemd-analyze"):
        ran = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True
        )
        unknown = [line for line in ran.stderr.splitlines() if "Unknown" in line]
        assert unknown == []


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_images_copy_and_start_what_is_there(path: Path) -> None:
    root = FOLDER if path.suffix else FOLDER.parents[1]
    text = path.read_text().replace("\\\n", " ")
    for sources in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (root / source).exists(), source
    (entry,) = re.findall(r'^ENTRYPOINT \["(.*)"\]$', text, re.MULTILINE)
    assert (FOLDER / Path(entry).name).is_file()
    assert "HEALTHCHECK" in text and "/health" in text
