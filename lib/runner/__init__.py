"""The Python side of run_notebooks.sh: what a command asks for, and doing it so that it can be stopped and go on."""
