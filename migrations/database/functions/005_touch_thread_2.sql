-- When a thread was written to: the database says it, whoever writes, and never less than it said before.
--
-- It decides a removal, so that no gateway's clock may (docs/operations/observability.md, Time). Who sets the column to
-- what it is does not touch the thread. An imported thread brings its time along, for as long as that is not still to
-- come.
CREATE FUNCTION stateroom.touch_thread_2() RETURNS trigger LANGUAGE plpgsql
AS $body$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.origin IS NULL OR NEW.updated_at > clock_timestamp() THEN
            NEW.updated_at := clock_timestamp();
        END IF;
    ELSIF NEW.updated_at IS DISTINCT FROM OLD.updated_at THEN
        NEW.updated_at := greatest(OLD.updated_at, clock_timestamp());
    END IF;
    RETURN NEW;
END
$body$;
REVOKE ALL ON FUNCTION stateroom.touch_thread_2 FROM PUBLIC;
CREATE TRIGGER touched BEFORE INSERT OR UPDATE OF updated_at ON stateroom.threads
    FOR EACH ROW EXECUTE FUNCTION stateroom.touch_thread_2();
