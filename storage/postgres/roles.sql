-- The five roles of a Stateroom database, and who may do what with a database as a whole. Run by a superuser (or a role
-- that may CREATE ROLE and grant BYPASSRLS, and owns the database): once per cluster before the first migration, and once
-- more when the database is there. Running it again changes nothing. Give the login roles passwords (or other credentials)
-- with ALTER ROLE afterwards.
DO $$
DECLARE
    attributes constant text[][] := ARRAY[
        ['gw_migrate', 'LOGIN BYPASSRLS'],   -- owns the schema; migrations and dump only
        ['gw_app',     'LOGIN NOBYPASSRLS'], -- serves; sees one tenant and subject at a time
        ['gw_auth',    'NOLOGIN NOBYPASSRLS'], -- owns the credential look-up function, nothing else
        ['gw_worker',  'LOGIN NOBYPASSRLS'], -- finds due work across tenants; then works as gw_app
        ['gw_ops',     'LOGIN NOBYPASSRLS']  -- people with a SQL prompt: clear columns only
    ];
    entry text[];
BEGIN
    FOREACH entry SLICE 1 IN ARRAY attributes LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = entry[1]) THEN
                EXECUTE format('CREATE ROLE %I NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT %s',
                               entry[1], entry[2]);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL; -- another database of the cluster is being set up at the same moment
        END;
    END LOOP;
END
$$;

-- The owner of the schema must be able to give the look-up function to gw_auth. Whoever restores a dump and is no
-- superuser may not grant this again, and need not.
DO $$
BEGIN
    IF NOT pg_has_role('gw_migrate', 'gw_auth', 'SET') THEN
        GRANT gw_auth TO gw_migrate;
    END IF;
END
$$;

-- Nobody but the owner makes temporary tables: nothing here needs them, and one can stand before a table of its name.
DO $$
DECLARE
    own name;
BEGIN
    FOR own IN SELECT datname FROM pg_database WHERE pg_get_userbyid(datdba) = 'gw_migrate' LOOP
        EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', own);
    END LOOP;
END
$$;
