"""Reads of rows that move between the database and archives, wherever they are."""
