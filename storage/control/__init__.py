"""Whether a gateway wrote what steers it, which features all processes know, and whose clock is right."""
