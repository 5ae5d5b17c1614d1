"""The comparison of distilled with plain training: contenders are of one size, and of equal tokens or operations."""

import pytest

from lib.training import distillation
from lib.training.family import FAMILY

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


def test_a_plain_members_operations_are_six_a_weight_and_token():
    tiny = FAMILY["tiny"]
    assert distillation.operations(tiny) == 6 * distillation.parameters(tiny) * tiny.plan.tokens
