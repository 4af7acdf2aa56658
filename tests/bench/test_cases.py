"""The cases are those of the model that is trained, and a rival knows every one."""

import ast
from pathlib import Path

from paddle_ernie.bench import ours, rivals
from paddle_ernie.bench.cases import REFERENCE_MODEL, all_cases, parameter_sizes
from paddle_ernie.models.cost import parameter_counts
from paddle_ernie.models.model import ErnieMoeModel
from tests.bench.tiny import TINY


def test_parameter_sizes_are_those_of_the_model() -> None:
    model = ErnieMoeModel(TINY)
    there = [tuple(p.shape) for p in model.parameters() if not p.stop_gradient]
    assert sorted(map(tuple, parameter_sizes(TINY))) == sorted(there)


def test_the_reference_model_is_as_described() -> None:
    counts = parameter_counts(REFERENCE_MODEL)
    assert counts.total == 20_602_112
    assert REFERENCE_MODEL.moe_layers == (1, 2, 3, 4, 5)


def test_both_sides_know_every_operator() -> None:
    families = {case.family for case in all_cases(REFERENCE_MODEL)}
    for folder, file in ((ours, "ops.py"), (rivals, "torch_ops.py")):
        tree = ast.parse((Path(folder.__file__).parent / file).read_text())
        assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        table = next(n.value for n in assigned if "OPERATORS" in ast.unparse(n).partition("=")[0])
        assert {key.value for key in table.keys} == families


def test_names_tell_cases_apart() -> None:
    names = [case.name for case in all_cases(REFERENCE_MODEL)]
    assert len(set(names)) == len(names)
