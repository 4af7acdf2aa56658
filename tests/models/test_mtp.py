import numpy as np
import pytest

from paddle_ernie.models.mtp import mtp_inputs


def test_targets_stay_inside_documents():
    ids = np.array([[1, 2, 3, 4, 5, 6, 7, 8]])
    labels = np.array([[2, 3, 4, -100, 6, 7, 8, 9]])
    doc_ids = np.array([[0, 0, 0, 0, 1, 1, 1, 1]])
    next_ids, next_labels = mtp_inputs(ids, labels, doc_ids)
    assert next_ids[0, :-1].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert next_labels.tolist() == [[3, 4, -100, -100, 7, 8, 9, -100]]


def test_masked_labels_have_no_target():
    labels = np.array([[-100, -100, 4, 5]])
    _, next_labels = mtp_inputs(np.array([[1, 2, 3, 4]]), labels, np.zeros((1, 4), int))
    assert next_labels.tolist() == [[-100, 4, 5, -100]]


def test_loss_scales_with_weight_and_denominator(make_model, make_rows, total_loss):
    model, rows = make_model(num_nextn_predict_layers=1), make_rows(3)
    without = total_loss(model, rows)
    output = total_loss(model, rows, mtp_weight=0.3, mtp_denominator=11.0)
    assert without.mtp_loss_sum == 0
    assert output.mtp_loss_sum > 0
    extra = float(output.total) - float(without.total)
    assert extra == pytest.approx(0.3 * output.mtp_loss_sum / 11, rel=1e-4)
    shared = total_loss(model, rows, mtp_weight=0.3)
    extra = float(shared.total) - float(without.total)
    assert extra == pytest.approx(0.3 * output.mtp_loss_sum / 7, rel=1e-4)


def test_the_block_sees_the_next_token_and_nothing_later(make_model):
    """Change one token; losses of the prediction block at earlier positions tell what it saw."""
    model = make_model(num_nextn_predict_layers=1)
    ids = np.arange(10)[None] + 5
    doc_ids, positions = np.zeros_like(ids), np.arange(10)[None]

    def loss_at(position: int, tokens: np.ndarray) -> float:
        labels = np.full_like(ids, -100)
        labels[0, position + 1] = 50  # the second-next token of `position`
        output = model.loss(tokens, labels, doc_ids, positions, denominator=1.0, mtp_weight=1.0)
        return output.mtp_loss_sum

    changed = ids.copy()
    changed[0, 6] = 90
    assert loss_at(4, ids) == pytest.approx(loss_at(4, changed), rel=1e-6)
    assert abs(loss_at(5, ids) - loss_at(5, changed)) > 1e-3
