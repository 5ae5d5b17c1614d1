"""Tree attention: the operator, its backends, and their registration with transformers.

Start at `operator` (`tree_attention`, and the rule by which it chooses a backend) and `registration` (`tree_forward`,
one forward pass of a model over a tree, and what a model's attention has to be for that). `backends` has the plain
definition and the fast implementations, `triton` the kernel for GPUs, `masks` the forms of a tree's mask.
"""
