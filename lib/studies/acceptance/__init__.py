"""What is left here until the other studies read tables in their notebooks."""
