"""The drafters that compete in the advice: who they are, what they cost, and what results depend on."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lib import cost, models
from lib.drafters.eagle import EagleDrafter
from lib.studies.advice import competitors
from lib.tests import small_models


def test_heads_compete_with_the_models_of_their_target():
    pairs = models.load_pairs(["small/tiny", "small/tiny-small"])
    found = competitors.of_target(pairs, ["eagle"])
    assert list(found) == ["tiny", "tiny-small", "eagle"] and isinstance(found["eagle"], EagleDrafter)
    assert found["tiny"] is pairs[0].draft_model
    folders = [Path(folder).relative_to(models.SHIPPED).as_posix() for folder in competitors.folders(pairs, ["eagle"])]
    assert folders == ["heads/small/eagle", "small", "tiny", "tiny-small"]
    rows = competitors.calibrate(
        pairs[:1], ["eagle"], small_models.prompts(0, [40]), batches=[1], prefixes=[24], new_tokens=3, repeats=1,
        seconds=0.1, shapes=("chain:0", "chain:1", "chain:2"), generator=torch.Generator().manual_seed(0))
    known = cost.Costs(rows)
    assert known.at("small", "eagle", prefix=24).plain > 0 and known.at("small", "tiny", prefix=24).plain > 0


@pytest.mark.parametrize(("target", "kind", "complaint"), [
    ("small", "hydra", "head is of kind 'hydra'; choose one of medusa"),
    ("gpt2", "eagle", "no head of kind 'eagle' ships for target 'gpt2': there is no folder"),
])
def test_a_head_that_is_not_there_is_named(target, kind, complaint):
    pair = SimpleNamespace(target_name=target, drafter_name="d", draft_model=None)
    with pytest.raises(ValueError, match=complaint):
        competitors.of_target([pair], [kind])
