"""What people decide over: the one form and the hash of an action. It asks no gateway and knows no framework."""
