-- Every write that must touch a number of rows counts them, and this undoes the transaction where it
-- touched others: a count that is wrong would stay wrong for ever. The caller then leaves it to the verbs,
-- and says so. A row is written by its ctid only where nothing in the same function has written to its
-- table since the ctid was read: a second write would find no row.
CREATE FUNCTION millpond_miscounted(what text, expected bigint, touched bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'wrote % row(s) of %, not %', touched, what, expected USING ERRCODE = 'MP002';
END $$;
