-- What gateways set for themselves when they connect, as settings of their role: a pooler does not pass those on.
-- As a superuser, once for each database; it holds for new connections. Lost with the database: run it after a restore
-- from a dump, too. `stateroom doctor`, with the gateway's URL, says whether it holds.
ALTER ROLE gw_app IN DATABASE stateroom SET jit = 'off';
ALTER ROLE gw_app IN DATABASE stateroom SET lock_timeout = '5s';
ALTER ROLE gw_app IN DATABASE stateroom SET statement_timeout = '30s';
ALTER ROLE gw_app IN DATABASE stateroom SET idle_in_transaction_session_timeout = '30s';
