"""Operations on checkpoints and what belongs to them: pending writes, histories, pieces."""
