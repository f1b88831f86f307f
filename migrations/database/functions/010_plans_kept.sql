-- The functions that write on what the gateway remembers keep their plans, as the one that loads does.
--
-- All their scans are by primary key, whatever the parameters are, so that no plan is better than the one for any
-- parameters; one for each call takes half of the processor time again, or three quarters. Statistics that make it seem
-- cheaper can come with any ANALYZE.
ALTER FUNCTION stateroom.save_on_6 SET plan_cache_mode = force_generic_plan;
ALTER FUNCTION stateroom.put_writes_on_5 SET plan_cache_mode = force_generic_plan;
