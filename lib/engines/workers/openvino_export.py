"""Writes a model in OpenVINO's form: one in transformers' layout, or an EAGLE-3 head in the layout of its authors."""

import json
from pathlib import Path

from channel import serve
from optimum.exporters.openvino import main_export
from optimum.exporters.openvino.convert import export_from_model
from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM, LlamaEagle3Model
from optimum.intel import OVConfig

TASK = "text-generation-with-past"
UNREAD = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")  # of newer heads; unknown to the exporter
MARK, LAYERS = '<eagle3_mode value="True" />', '<hidden_layers_list value="{}" />'  # in the file of a graph


def export(source, into, weights):
    """Writes the folder `into`; weights: their number format there."""
    settings, form = json.loads(Path(source, "config.json").read_text()), OVConfig(dtype=weights)
    if "eagle3" not in "".join(settings.get("architectures") or ()).lower():
        main_export(source, into, task=TASK, ov_config=form, convert_tokenizer=True)
        return
    if unread := [name for name in UNREAD if settings.get(name)]:
        raise ValueError(f"{source} has {unread[0]}, which OpenVINO's exporter does not know; take a head without")
    for kind in (LlamaEagle3Model, LlamaEagle3ForCausalLM):
        kind.__module__ = "transformers"  # which the exporter takes for the library of a class
    export_from_model(LlamaEagle3ForCausalLM.from_pretrained(source), into, task=TASK, ov_config=form)
    # The engine counts layers whose output is read, heads those whose input is.
    layers = ", ".join(str(layer - 1) for layer in settings["eagle_aux_hidden_state_layer_ids"])
    graph = Path(into, "openvino_model.xml")
    graph.write_text(graph.read_text().replace(MARK, MARK + LAYERS.format(layers)))


if __name__ == "__main__":
    serve({"start": export})
