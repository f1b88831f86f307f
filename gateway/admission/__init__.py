"""What may run at once, and the named limits of everything else."""
