"""FastDeploy's flags and ours become settings and options, or errors that say what to do."""

import logging
from pathlib import Path

import pytest

from paddle_ernie.serve.api.settings import RouteStoreKind, RoutingReplay, ServerSettings
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.flags import WITHOUT_MEANING, parse, routing_replay
from paddle_ernie.utils.errors import InputError


def command(*argv: str):
    return parse("Serve.\n\nMore.", ["--model", "dir", *argv])


def test_defaults_are_those_of_the_records():
    found = command()
    assert found.settings == ServerSettings(model_dir=Path("dir"))
    assert found.options == EngineOptions()
    assert (found.model, found.threads, found.without_meaning) == (Path("dir"), None, ())


def test_a_launch_script_of_fastdeploy_runs(caplog):
    """The example of its documentation, in dashes and underscores."""
    found = command(
        "--port", "8188", "--metrics-port", "8181", "--engine-worker-queue-port", "8182",
        "--cache-queue-port", "8183", "--tensor_parallel_size", "1", "--enable-expert-parallel",
        "--max-model-len", "32768", "--max_num_seqs=64", "--gpu-memory-utilization", ".9",
        "--load-choices", "default_v1", "--enable-logprob", "--dynamic_load_weight",
        "--load_strategy", "normal", "--served-model-name", "ernie", "--api-key", "a", "b",
        "--max-concurrency", "77", "--workers", "2", "--max-logprobs", "-1",
        "--no-enable-prefix-caching", "--graph-optimization-config", '{"use_cudagraph": false}',
        "--quantization", "block_wise_fp8",
        "--routing-replay-config", '{"enable_routing_replay":true,"routing_store_type":"local"}',
        "--tool-call-parser", "ernie-x1", "--reasoning-parser", "none",
    )  # fmt: skip
    settings, options = found.settings, found.options
    assert (settings.port, settings.metrics_port, settings.workers) == (8188, 8181, 2)
    assert settings.api_keys == ("a", "b")
    assert (settings.served_model_name, settings.max_concurrency) == ("ernie", 77)
    assert settings.dynamic_load_weight and settings.max_logprobs == -1
    assert settings.routing_replay == RoutingReplay(RouteStoreKind.LOCAL)
    assert settings.parse_tool_calls and settings.parse_reasoning is False
    assert (options.max_model_len, options.max_num_seqs) == (32768, 64)
    assert (options.precision, options.keep_routes) == ("fp8", True)
    assert options.enable_prefix_caching is False
    with caplog.at_level(logging.WARNING):
        found.warn()
    (record,) = caplog.records
    for name in ("cache-queue-port", "enable-expert-parallel", "tensor-parallel-size"):
        assert name in found.without_meaning and f"--{name}" in record.getMessage()
    assert "--port" not in record.getMessage()


def test_nothing_is_said_when_every_flag_means_something(caplog):
    command("--port", "1").warn()
    assert not caplog.records


@pytest.mark.parametrize("name", WITHOUT_MEANING)
def test_flags_without_meaning_may_have_a_value_or_none(name):
    assert command(f"--{name}").without_meaning == (name,)
    assert command(f"--{name.replace('-', '_')}", "x", "--port", "5").settings.port == 5


def test_our_own_flags(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    found = command(
        "--weights-dir", "w", "--precision", "bf16", "--moe-k", "1", "--subnet", "layers=2",
        "--kv-cache-gib", "0.5", "--request-timeout", "9.5", "--access-log", "log",
        "--threads", "3",
        "--chat-template", str(template), "--num-gpu-blocks-override", "7", "--allow-open",
    )  # fmt: skip
    assert found.threads == 3
    assert found.options == EngineOptions(
        weights_dir=Path("w"), precision="bf16", moe_k=1, subnet="layers=2",
        kv_cache_bytes=2**29, num_pages=7,
    )  # fmt: skip
    assert found.settings == ServerSettings(
        model_dir=Path("dir"), request_timeout_s=9.5, access_log=Path("log"), allow_open=True,
        chat_template="{{ messages }}",
    )  # fmt: skip
    assert command("--chat-template", "{{ 1 }}").settings.chat_template == "{{ 1 }}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--load-strategy", "ipc"], "--load-strategy is ipc; expected normal"),
        (["--quantization", "wint8"], "--quantization is wint8; expected block_wise_fp8"),
        (["--logprobs-mode", "processed"], "--logprobs-mode is processed"),
        (["--block-size", "16"], "--block-size is 16; expected 64"),
        (["--tokenizer", "other"], "--tokenizer is other"),
        (["--max-logprobs", "-2"], "--max-logprobs is -2"),
        (["--chat-template", "/nowhere"], "--chat-template /nowhere"),
        (["--routing-replay-config", "{"], "not JSON"),
        (["--routing-replay-config", "[]"], "expected an object"),
    ],
)
def test_values_that_cannot_be(argv, message):
    with pytest.raises(InputError, match=message):
        command(*argv)


@pytest.mark.parametrize(
    "argv",
    [["--frobnicate"], ["--max-model", "5"], ["--port", "70000"], ["--kv-cache-gib", "0"],
     ["--workers", "0"], ["stray"]],
)  # fmt: skip
def test_flags_nobody_knows_and_values_out_of_range(argv, capsys):
    with pytest.raises(SystemExit) as left:
        command(*argv)
    assert left.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_routing_replay():
    assert routing_replay(None) is None
    assert routing_replay('{"enable_routing_replay": false}') is None
    found = routing_replay(
        '{"enable_routing_replay": true, "routing_store_type": "local", "local_store_dir": "d",'
        ' "use_fused_put": true, "only_last_turn": true, "rdma_store_server": ""}'
    )
    assert found == RoutingReplay(RouteStoreKind.LOCAL, Path("d"), fused=True, only_last_turn=True)
    with pytest.raises(InputError, match="'rdma'; expected 'local'"):
        routing_replay('{"enable_routing_replay": true, "routing_store_type": "rdma"}')
