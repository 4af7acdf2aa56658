"""Cases generated from the server's own OpenAPI document find no answer of 5xx.

Slow bodies, wrong types, unknown fields, odd methods and headers: whatever a caller sends is the
caller's fault, and said so.
"""

import contextlib
import os
from collections import Counter

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.serve.real_server import serving

CASES = int(os.environ.get("ERNIE_SCHEMA_CASES", "12"))
NOT_PAUSED = "Pause LLM Engine first"
"""New weights without a pause are 500 in FastDeploy's contract."""


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_dir):
    folder = tmp_path_factory.mktemp("openapi")
    with serving(folder, model_dir, request_timeout_s=5.0) as server:
        yield server


def test_no_generated_request_is_answered_by_5xx(server):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    statuses: Counter = Counter()
    for result in schema.get_all_operations():
        for mode in schemathesis.GenerationMode:
            try_operation(server.url, result.ok(), mode, statuses)
        httpx.post(f"{server.url}/v1/wakeup")
        httpx.post(f"{server.url}/v1/resume")
    print(dict(statuses))
    assert statuses[200] >= 10 and statuses[400] >= 10
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert "Traceback" not in server.log, server.log


def try_operation(
    url: str,
    operation: schemathesis.APIOperation,
    mode: schemathesis.GenerationMode,
    statuses: Counter,
) -> None:
    """Cases that follow the document, or that break it."""

    @settings(
        max_examples=CASES,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def try_case(case):
        response = case.call(base_url=url, timeout=30)
        statuses[response.status_code] += 1
        # Generation while a generated call has the engine paused: right, not a fault.
        paused = response.status_code == 503
        assert response.status_code < 500 or paused or NOT_PAUSED in response.text, (
            f"{operation.label}: {response.status_code} {response.text[:500]}\n"
            f"{case.as_curl_command()}"
        )
        if paused:
            httpx.post(f"{url}/v1/resume")

    # What takes nothing has no case that breaks its document.
    with contextlib.suppress(hypothesis.errors.Unsatisfiable):
        try_case()
