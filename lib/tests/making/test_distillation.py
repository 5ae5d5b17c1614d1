"""The comparison of distilled with plain training: contenders are of one size, and of equal tokens or operations."""

import pandas as pd
import pytest

from lib.making import distillation
from lib.making.family import FAMILY

DISTILLED = [name for name, member in FAMILY.items() if member.teacher]


def test_parameters_are_those_of_the_shipped_weights():
    from safetensors import safe_open

    from lib.models import SHIPPED

    with safe_open(SHIPPED / "tiny" / "model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).numel() for name in file.keys())
    assert distillation.parameters(FAMILY["tiny"]) == stored


@pytest.mark.parametrize("name", DISTILLED)
def test_contenders_are_equal_in_what_their_names_say(name):
    members = distillation.contenders(FAMILY[name])
    distilled = members[distillation.DISTILLED]
    plain, dear = members[distillation.EQUAL_TOKENS], members[distillation.EQUAL_COMPUTE]
    assert distilled.teacher and not plain.teacher and not dear.teacher
    assert len({distillation.parameters(member) for member in members.values()}) == 1
    assert plain.plan.tokens == distilled.plan.tokens
    assert distillation.operations(dear) == pytest.approx(distillation.operations(distilled), rel=0.01)


def test_rows_of_a_target_replace_its_own_and_no_others(tmp_path):
    path = tmp_path / "distillation.csv"
    for target, value in (("base", 1.0), ("small", 2.0), ("base", 3.0)):
        told = distillation.write_rows(path, pd.DataFrame(dict(target=[target], value=[value])))
    assert dict(zip(told["target"], told["value"])) == {"small": 2.0, "base": 3.0} and told.equals(pd.read_csv(path))


def test_a_target_of_which_nothing_was_distilled_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'tiny'; choose one of base, small"):
        distillation.compare("tiny", tmp_path)


def test_a_plain_members_operations_are_six_a_weight_and_token():
    tiny = FAMILY["tiny"]
    assert distillation.operations(tiny) == 6 * distillation.parameters(tiny) * tiny.plan.tokens
