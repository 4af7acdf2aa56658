"""One answer of several processes'."""

import json

import pytest

from paddle_ernie.serve.processes.broadcast import combine, together


def encoded(*answers):
    return [(status, json.dumps(body).encode()) for status, body in answers]


def test_success_of_all_is_success():
    ok = {"status": "success", "result": {"aborted": ["a"], "done": True}}
    other = {"status": "success", "result": {"aborted": ["b"], "done": False}}
    status, body = combine(encoded((200, ok), (200, other)))
    assert status == 200 and body["status"] == "success"
    assert body["result"] == {"aborted": ["a", "b"], "done": False}
    assert [worker["status_code"] for worker in body["workers"]] == [200, 200]


@pytest.mark.parametrize("status", [500, 200])
def test_failure_of_one_is_failure(status):
    ok = {"status": "success", "result": []}
    bad = {"status": "error", "error_message": "no"}
    answers = encoded((200, ok), (status, bad))
    for order in (answers, answers[::-1]):
        code, body = combine(order)
        assert code == 500 and body["error_message"] == "no"
        assert len(body["workers"]) == 2


def test_answers_that_are_no_json_or_empty():
    assert combine([(200, b""), (200, b"")]) == (200, {})
    code, body = combine([(200, b"{}"), (404, b"Dynamic Load Weight Disabled.")])
    assert code == 404 and body["message"] == "Dynamic Load Weight Disabled."


def test_results_put_together():
    assert together([1, 2]) == 1
    assert together([{"a": 1}, {"a": 1, "b": 2}]) == {"a": 1}
    assert together([[1], [2, 3]]) == [1, 2, 3]
    assert together([True, True]) is True
