"""Migrations of two unrelated kinds; README.md beside this file tells them apart. This module owns nothing."""
