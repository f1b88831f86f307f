"""Commands that run, set up or check a gateway on this machine, with its own settings."""
