"""Parameters are checked by one class per notebook, in one place."""

import re

import pytest

from lib.drafters.registry import DRAFTERS
from lib.forward.load import formats_of
from lib.lab.parameters import defaults_of
from lib.lab.provenance import HOME
from lib.study import settings
from lib.study.settings import NOTEBOOKS, Acceptance, Shapes, Speed
from lib.tests.notebook_settings import defaults

SPEED = defaults_of(HOME / "notebooks" / "05_speed.ipynb")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_class_declares_the_parameters_of_its_notebook_whose_defaults_it_takes(name):
    values = defaults_of(HOME / "notebooks" / f"{name}.ipynb")
    assert NOTEBOOKS[name].model_fields.keys() == values.keys()
    assert defaults(NOTEBOOKS[name]).model_dump() == values


def test_a_notebooks_globals_make_an_object_without_what_is_no_parameter():
    made = Speed.of(SPEED | {"__name__": "__main__", "chapter": object(), "costs": ""})
    beside = {"formats", "engines", "lengths", "sampled_temperature"}
    assert made.pairs == ["small/tiny"] and made.parameters.keys() == SPEED.keys() - {"run_dir"} - beside
    assert made.parameters == Speed.of(SPEED | dict(formats=["int8"], engines=[], lengths=[16])).parameters
    assert {path.name for path in made.files} >= {"small", "tiny", "family.jsonl", "chat.jsonl"}
    assert all(path.exists() for path in made.files)


@pytest.mark.parametrize(("kind", "changes", "complaint"), [
    (Speed, dict(pairs=["base/typo"]), "pairs: pair 'base/typo' is unknown; choose one of smollm2-135m"),
    (Speed, dict(pairs=[]), r"pairs is \[\]: List should have at least 1 item"),
    (Speed, dict(pairs=["./no/target|./no/drafter"]), "there is no folder ./no/target"),
    (Speed, dict(prompts="no_such_folder/prompts"), "prompts: no prompts at"),
    (Speed, dict(judge_prompts=1000), r"kinds translation, questions.* have fewer than 1 \+ 1000 prompts"),
    (Speed, dict(device="abacus"), "device is 'abacus': Input should be 'cpu', 'cuda' or 'mps'"),
    (Speed, dict(dtype="float7"), "dtype is 'float7': String should match pattern '.*bfloat16"),
    (Speed, dict(drafters=["topk"]), "drafters: drafter is 'topk'; choose one of "),
    (Speed, dict(drafters=["combined:enough=x"]), "combined takes no 'enough=x'"),
    (Speed, dict(drafters=["eagle3", "medusa", "dspark"]), "no head of kind 'dspark' exists for target 'small'"),
    (Speed, dict(pairs=["small"], drafters=["model"]), "drafters name 'model', but no pair has a draft model"),
    (Speed, dict(logs="no.jsonl"), "logs: .*No such file .*no.jsonl"),
    (Speed, dict(costs="no such machine"), "costs: there are no costs 'no such machine': .* give a CSV file"),
    (Speed, dict(endpoint="localhost"), "endpoint is 'localhost': String should match pattern"),
    (Speed, dict(endpoint="http://h/v1"), "served is empty; give the name"),
    (Speed, dict(endpoint="http://h/v1", served="m"), "costs is empty, and answers from elsewhere cannot be timed"),
    (Speed, dict(engines=["sglang"]), "engine is 'sglang'; choose one of vllm"),
    (Speed, dict(engine_drafters=["no/such/model"]), "engine_drafters: there is no folder no/such/model"),
    (Speed, dict(raced=[1, 1]), r"raced is \[1, 1\]; give one number of calls for each of batches \[1\]"),
    (Speed, dict(new_tokens="many"), "new_tokens is 'many': Input should be a valid integer"),
    (Shapes, dict(families=["frequent"]), "families: 'frequent@1' is unknown"),
    (Acceptance, dict(live_shapes=["kary:2"]), "live_shapes: 'kary:2' cannot be read"),
    (Acceptance, dict(live_shapes=["chain:60000"]), "'chain:60000' is too large; a draft tree has at most 512 nodes"),
    (Acceptance, dict(temperatures=[0, float("nan")]), "temperatures is nan: Input should be a finite number"),
    (Acceptance, dict(budgets=[10**9]), "budgets is 1000000000: Input should be less than or equal to 512"),
])
def test_a_wrong_value_is_refused_in_one_line_that_names_parameter_value_and_remedy(kind, changes, complaint):
    with pytest.raises(ValueError, match=complaint) as refused:
        defaults(kind, **changes)
    assert "\n" not in str(refused.value)


def test_enough_prompts_are_required_of_the_file_that_each_target_reads(tmp_path):
    values = SPEED | dict(drafters=[], choose_prompts=10, judge_prompts=30)
    Speed.of(values | dict(pairs=["base/small", "tiny"]))  # the family's file has 40 of each kind
    with pytest.raises(ValueError, match="kinds writing, .* have fewer than 10 . 30"):
        Speed.of(values | dict(pairs=["base/small", "owner/of-the-hub"]))
    Speed.of(values | dict(pairs=["owner/of-the-hub"], prompts="family"))
    few = tmp_path / "few.jsonl"
    few.write_text('{"turns": ["One."]}\n')
    with pytest.raises(ValueError, match="kinds chat have fewer than 10 . 30"):
        Speed.of(values | dict(prompts=str(few)))
    few.write_text('{"turns": ["One."]}\n{"turns": ["Two."]}\n')
    Speed.of(values | dict(prompts=str(few)))


def test_every_fault_has_a_line_and_a_missing_parameter_is_named():
    with pytest.raises(ValueError) as refused:
        Speed.of({name: value for name, value in SPEED.items() if name != "seed"} | dict(device="abacus", threads=-1))
    lines = str(refused.value).splitlines()
    assert [re.split(r"\W", line)[0] for line in lines] == ["device", "seed", "threads"]
    assert lines[1] == "seed: Field required"


@pytest.mark.parametrize(("field", "text", "value"), [
    ("lengths", "1,2", [1, 2]), ("drafters", "", []), ("threads", "2", 2),
    ("drafters", "lookup; sam; lookup", ["lookup", "sam"]), ("sampled_temperature", "1", 1.0),
    ("pairs", "small/tiny;", ["small/tiny"]), ("prompts", "chat", "chat"), ("temperature", "1e-1", 0.1),
])
def test_texts_of_a_command_line_become_what_a_field_holds(field, text, value):
    assert getattr(Speed.of(SPEED | {field: text}), field) == value


def test_names_that_are_written_without_torch_are_those_of_the_code_with_torch():
    for name, kind in DRAFTERS.items():
        written = {option: type_ for option, type_ in kind.options.items() if type_ in (int, float, str)}
        assert (kind.written or {}) == written, name
    for name in settings.NUMBER_FORMATS:
        assert formats_of(name)
