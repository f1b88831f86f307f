"""Operations on versions of state and on save policies."""
