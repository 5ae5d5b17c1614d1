"""OpenVINO GenAI: how its worker counts rounds, with a stand-in for its package; its settings and its look-up."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace as Space

import pytest

from lib.drafters.drafter import UNKNOWN
from lib.engines import driver
from lib.engines.driver import FORCED, PLAIN, Setting
from lib.engines.openvino import DEPTH, OPENVINO, WIDTH, FilledLookupDrafter, options_of
from lib.trees import shapes
from lib.trees.growth.rules import Eagle2

GIVEN, TREE = [1, 1, 3, 2, 1], {"branching_factor": 4, "tree_depth": 4}  # tokens of each step of a request that drafts


class Pipeline:
    def __init__(self, model, scheduler, device, properties):
        assert not scheduler.enable_prefix_caching and device == "CPU"
        self.properties, self.left = properties, []

    def add_request(self, name, tokens, settings):
        read = []
        self.left.append((list(GIVEN) if settings.num_assistant_tokens else [1] * settings.max_new_tokens, read))
        return Space(can_read=lambda: bool(read), read=lambda: {0: Space(generated_ids=read.pop())})

    def has_non_finished_requests(self):
        return any(steps for steps, _ in self.left)

    def step(self):
        for steps, read in self.left:
            read += [[7] * steps.pop(0)] if steps else []


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", Space(Tensor=lambda array: array))
    monkeypatch.setitem(sys.modules, "openvino_genai", Space(
        ContinuousBatchingPipeline=Pipeline, SchedulerConfig=Space, draft_model=lambda folder, *_, **properties: folder,
        GenerationConfig=lambda **options: Space(**{"num_assistant_tokens": None, **options},
                                                 is_tree_search=lambda: "tree_depth" in options)))
    monkeypatch.syspath_prepend(Path(driver.__file__).with_name("workers"))
    yield importlib.import_module("openvino_worker")
    del sys.modules["openvino_worker"]


def decoded(worker, setting, prompts=1, drafted=None):
    worker.start("target", setting.method, setting.drafter, options_of(setting), {}, batch=2, batched_tokens=64)
    return worker.decode([[1, 2]] * prompts, sum(GIVEN), [], drafted)


def test_rounds_are_counted_by_what_they_give(worker):
    plain = decoded(worker, Setting(), prompts=2)
    assert plain.keys() == {"tokens", "seconds", "prefill"} and [*map(len, plain["tokens"])] == [8, 8]
    for setting, drafts, drafted in (
            (Setting("prompt_lookup", 3), 4, 12), (Setting("eagle3", 8, "head", TREE), 4, 32),
            (Setting("draft_model", 3, "drafter"), 3, 8)):  # where 6, 5, 2 and no tokens fit
        found = decoded(worker, setting)
        assert (found["drafts"], found["drafted"], found["accepted"][:3]) == (drafts, drafted, [2, 1, 0])
    with pytest.raises(ValueError, match="one prompt at a time, not for 2"):
        decoded(worker, Setting("eagle3", 8, "head", TREE), prompts=2)


def test_forced_drafts_have_any_number_and_find_no_match(worker):
    assert decoded(worker, Setting(FORCED, 16), drafted=2)["drafted"] == 8
    settings = worker.configuration(8, [5, 6], 2)
    assert worker.running["pipeline"].properties == {"prompt_lookup": True} and settings.repetition_penalty == 1e9
    assert (settings.eos_token_id, settings.stop_token_ids, settings.ignore_eos) == (5, {5, 6}, False)


def test_settings_are_the_engines_own():
    assert options_of(Setting(PLAIN)) == {} and options_of(Setting("draft_model", 3)) == {"num_assistant_tokens": 3}
    assert options_of(Setting("eagle3", 2, "head", TREE))["tree_depth"] == 2, "no deeper than it has tokens"
    tree = next(method for method in OPENVINO.methods if method.alone)
    assert tree.shape(8) == Eagle2(WIDTH, DEPTH, 8) and tree.shape(2).max_depth == 2
    assert OPENVINO.line(Setting("eagle3", 8, "head", TREE)) == (
        "LLMPipeline(MODEL, \"CPU\", draft_model=draft_model('head', \"CPU\")); GenerationConfig("
        "num_assistant_tokens=8, branching_factor=4, tree_depth=4)")


def test_look_up_takes_the_first_occurrence_and_fills_drafts_up():
    (text := (drafter := FilledLookupDrafter(2)).new_text()).extend([1, 2, 3, 9, 1, 2, 4, 1, 2])
    assert drafter.draft(text, shapes.chain(3)).tokens.tolist() == [2, 3, 9, 1]
    text.extend([8])
    assert drafter.draft(text, shapes.chain(3)).tokens.tolist() == [8, UNKNOWN, UNKNOWN, UNKNOWN]
