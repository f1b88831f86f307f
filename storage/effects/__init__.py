"""The ledger of effects: what tools did to the world, so that a run that is repeated does not do it again."""
