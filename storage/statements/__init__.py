"""Every statement that serves: text with named parameters and the rows it returns, by what it is about.

They stand apart from the rooms whose verbs run them, because many are of two rooms, and because tests look through all
of them at once: for row-level security, for columns and fields, and for what a server of many nodes would refuse.
"""
