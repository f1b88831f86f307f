"""Commands that use a gateway over HTTP. They know the API and nothing else: no database, no key material."""
