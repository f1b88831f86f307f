"""Operations: how they are declared, found by requests, and run."""
