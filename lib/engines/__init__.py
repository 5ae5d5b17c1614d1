"""Serving engines: what to set in them, and drivers that run them in processes and environments of their own.

Start at `settings`, the lines that a user copies, and `driver`, what all drivers share. `vllm`, `llama_cpp`,
`openvino` and `transformers` each have an engine's settings, its `environments.Environment`, its driver and the
drafters that match as it does; their scripts in `workers` run with the engine's own Python.
"""
