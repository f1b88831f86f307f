"""Operations on what is in the ledgers of threads: what people are asked, claims, and effects."""
