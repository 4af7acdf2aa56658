"""What /metrics says, and when it changes."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from paddle_ernie.serve.engine.control import EngineStats
from tests.serve.small_server import running


def values(text: str) -> dict[str, float]:
    """Samples by name and labels, as written."""
    families = text_string_to_metric_families(text)
    return {
        sample.name + "".join(f"|{v}" for _, v in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_figures_of_the_engine_and_of_requests(tmp_path):
    async def main():
        async with running(tmp_path) as server:
            server.engine.stats = EngineStats(
                running=3, waiting=2, free_pages=4, cached_pages=1, total_pages=10, version=7,
                prompt_tokens=100, cached_tokens=40, generated_tokens=50, preemptions=6,
                paused=True,
            )  # fmt: skip
            body = {"tokens": 5, "pause": 0.01, "stream": True}
            for _ in range(3):
                await server.client.post("/v1/completions", json=body)
            await server.client.post("/v1/completions", content=b"no json")
            for path in ("/made/up/1", "/made/up/2"):
                await server.client.get(path)
            found = values((await server.client.get("/metrics")).text)
            expected = {
                "num_requests_running": 3, "num_requests_waiting": 2, "available_gpu_block_num": 4,
                "free_gpu_block_num": 3, "max_gpu_block_num": 10, "available_gpu_resource": 0.4,
                "gpu_cache_usage_perc": 0.6, "hit_token_rate": 0.4, "weight_version": 7,
                "is_paused": 1, "max_batch_size": 8, "available_batch_size": 5,
                "prompt_tokens_total": 100, "generation_tokens_total": 50,
                "prefix_cache_token_num_total": 40, "request_preempted_total": 6,
                "requests_number_total": 4, "request_success_total": 3,
                "e2e_request_latency_seconds_count": 3, "time_to_first_token_seconds_count": 3,
                "time_per_output_token_seconds_count": 3, "request_generation_tokens_sum": 15,
                "request_prompt_tokens_sum": 9, "request_params_max_tokens_sum": 15,
                "http_requests_total|done|other|404": 2,
            }  # fmt: skip
            assert {name: found.get(f"fastdeploy:{name}") for name in expected} == expected
            assert not any("made" in name for name in found)
            assert 0.01 <= found["fastdeploy:time_per_output_token_seconds_sum"] / 3 < 0.5
            assert found["process_open_fds"] > 3

    asyncio.run(main())


def test_applications_do_not_share_their_figures(tmp_path):
    async def main():
        async with running(tmp_path / "a") as one, running(tmp_path / "b") as other:
            await one.client.post("/v1/completions", json={"tokens": 1})
            name = "fastdeploy:requests_number_total"
            assert values((await one.client.get("/metrics")).text)[name] == 1
            assert values((await other.client.get("/metrics")).text)[name] == 0

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    asyncio.run(main())
