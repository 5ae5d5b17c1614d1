"""The best tree of a trace: for acceptance, for chained rounds, for the hardware."""
