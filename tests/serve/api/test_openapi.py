"""The OpenAPI document is complete, and its examples are requests that the server answers."""

import pytest

METHODS = {"get", "post"}


@pytest.fixture(scope="module")
def document(talking):
    return talking.client.get("/openapi.json").json()


def operations(document):
    for path, found in document["paths"].items():
        for method, operation in found.items():
            yield path, method, operation


def test_every_call_is_described(document):
    for path, method, operation in operations(document):
        assert method in METHODS and operation["summary"] and operation["tags"], path
        assert operation["description"], path
        assert "422" not in operation["responses"], path


def test_every_reference_leads_somewhere(document):
    def references(value):
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for item in value.values():
                yield from references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    schemas = document["components"]["schemas"]
    found = {name.removeprefix("#/components/schemas/") for name in references(document)}
    assert found <= set(schemas)
    assert {"ChatChunk", "ChatCompletion", "Completion", "ErrorResponse"} <= set(schemas)
    assert "HTTPValidationError" not in schemas


def test_examples_are_answered(document, talking):
    tried = 0
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = body["schema"]["$ref"].rsplit("/", 1)[1]
        for example in document["components"]["schemas"][name]["examples"]:
            assert talking.post(path, **{**example, "max_tokens": 4}).status_code == 200
            tried += 1
    assert tried == 4


def test_the_page(talking):
    assert "swagger" in talking.client.get("/docs").text.lower()
