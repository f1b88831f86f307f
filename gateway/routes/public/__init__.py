"""Operations that need no credential: probes and the documentation."""
