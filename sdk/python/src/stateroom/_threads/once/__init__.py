"""Once-calls: functions that are called unless a call of their name finished before."""
