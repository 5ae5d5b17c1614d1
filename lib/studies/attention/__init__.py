"""What attention over a tree costs: notebook 03."""
