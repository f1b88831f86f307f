"""Keys of tenants and subjects, seals of API keys, and whether older transactions have ended."""
