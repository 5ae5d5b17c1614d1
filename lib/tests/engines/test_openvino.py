"""OpenVINO GenAI: how its worker counts rounds, with a stand-in for its package; its settings and its look-up."""

from types import SimpleNamespace as Space

from lib.engines.methods import PLAIN_WAY, Way, forced
from lib.engines.openvino import UNKNOWN, FilledLookupDrafter, OpenVino, options_of
from lib.tests.engines.stand_in import import_worker
from lib.trees import named, shapes
from lib.trees.growth import Eagle2

GIVEN = [1, 1, 3, 2, 1]  # tokens of each step of a request that drafts


def pipeline(model, scheduler, device, properties):
    def add(name, tokens, settings):
        steps, read = list(GIVEN) if settings.num_assistant_tokens else [1] * settings.max_new_tokens, []
        requests.append((steps, read))
        return Space(can_read=lambda: bool(read), read=lambda: {0: Space(generated_ids=read.pop())})

    requests = []
    return Space(properties=properties, add_request=add, has_non_finished_requests=lambda: any(
        steps for steps, _ in requests), step=lambda: [read.append([7] * steps.pop(0)) for steps, read in requests
                                                       if steps])


def test_rounds_are_counted_by_what_they_give():
    def decoded(way, prompts=1, drafted=None):
        worker.start("target", way.method, way.weights, options_of(way), {}, batch=2, batched_tokens=64)
        return worker.decode([[1, 2]] * prompts, sum(GIVEN), [], drafted)

    worker = import_worker("openvino_worker", openvino=Space(Tensor=lambda array: array), openvino_genai=Space(
        ContinuousBatchingPipeline=pipeline, SchedulerConfig=Space, draft_model=lambda folder, *_: folder,
        GenerationConfig=lambda **options: Space(**{"num_assistant_tokens": None, **options})))
    assert "drafts" not in (plain := decoded(PLAIN_WAY, prompts=2)) and [*map(len, plain["tokens"])] == [8, 8]
    for method, shape, weights, drafted in (  # where 6, 5, 2 and no tokens fit
            ("prompt_lookup", shapes.chain(3), "", 9), ("eagle3/4x2", Eagle2(8, 2, 4), "head", 24),
            ("draft_model", shapes.chain(3), "drafter", 8)):
        found = decoded(Way("", method, shape, weights=weights))
        assert (found["drafts"], found["drafted"], found["accepted"]) == (3, drafted, 3)
    assert decoded(forced(16), drafted=2)["drafted"] == 6
    assert worker.running["pipeline"].properties == {"prompt_lookup": True}
    assert worker.configuration(8, [5, 6], 2).stop_token_ids == {5, 6}


def test_settings_are_the_engines_own_and_drafts_those_of_its_look_up():
    assert options_of(PLAIN_WAY) == {}
    trees = [method for method in OpenVino.methods if method.alone]
    settings = {tuple(options_of(Way("", method.name, named(method.shape(8)))).values()) for method in trees}
    assert settings == {(8, width, depth) for width in (2, 4) for depth in (2, 3, 4, 6)}
    assert all(named(method.shape(method.least)).max_depth < method.least for method in trees)
    (text := (drafter := FilledLookupDrafter(2)).new_text()).extend([1, 2, 3, 9, 1, 2, 4, 1, 2])
    assert drafter.draft(text, shapes.chain(3)).tokens.tolist() == [2, 3, 9, 1], "the first occurrence"
    text.extend([8])
    assert drafter.draft(text, shapes.chain(3)).tokens.tolist() == [8, UNKNOWN, UNKNOWN, UNKNOWN]
