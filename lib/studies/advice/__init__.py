"""Which tree to use here, and the settings for serving engines: notebook 06."""
