"""Backends: this project's loop, and serving engines in processes and environments of their own.

Start at `driver`, the interface that all backends have, and `methods`, how engines draft. `own` is this project's loop,
`log` stands for texts that were written elsewhere. `vllm`, `llama_cpp`, `ik_llama_cpp`, `openvino` and `transformers`
each have an engine's `environments.Environment`, its driver, its settings and the drafters that draft as it does; their
scripts in `workers` run with the engine's own Python. `registry` has the engines by name, and the lines that a user
copies.
"""
