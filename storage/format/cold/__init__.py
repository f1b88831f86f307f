"""The bytes of rows that are not in the database: archives, segments, and what the database keeps of them."""
