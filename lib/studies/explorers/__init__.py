"""Explorers for a person at JupyterLab, one a module, each beside a static figure of the same content."""
