"""Proving that stored threads are whole and as the gateway wrote them, one by one and as jobs."""
