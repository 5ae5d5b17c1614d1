"""Widgets for a person at JupyterLab, one per module; a static figure of the same content comes before each."""
