"""What every verb goes through to reach a scope's rows, hot or archived, and the checks that stand in one place."""
