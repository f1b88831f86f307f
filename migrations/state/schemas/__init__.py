"""Python steps that this build ships: a folder for each schema, named after it, with steps ``v1_to_v2.py``, ...

Never deleted: archived state stays at the version it was saved at for years. `migrations.state.loading` says what a
step is; operators add schemas of their own by an installed package (entry points ``stateroom.state_schemas``).
"""
