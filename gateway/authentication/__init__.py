"""Who calls: API keys, principals, and how much strangers may cost."""
