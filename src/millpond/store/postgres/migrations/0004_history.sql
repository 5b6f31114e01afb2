-- schema-4
--
-- The audit in parts: what grows old together goes together. New rows go to the part that `part` names by
-- default; from time to time the next part takes its place (functions/audit.sql). A part of which all is
-- too old is emptied at once, and waits for its turn again. So no part is ever made or missing, and
-- statements that write do not name it.
--
-- What a store has from before becomes the first part.
ALTER TABLE millpond_audit RENAME TO millpond_audit_0;
ALTER TABLE millpond_audit_0 ADD COLUMN part smallint NOT NULL DEFAULT 0;
ALTER TABLE millpond_audit_0 DROP CONSTRAINT millpond_audit_pkey;

CREATE TABLE millpond_audit (LIKE millpond_audit_0 INCLUDING DEFAULTS INCLUDING STORAGE)
    PARTITION BY LIST (part);
ALTER TABLE millpond_audit ADD PRIMARY KEY (position, part);
ALTER TABLE millpond_audit ATTACH PARTITION millpond_audit_0 FOR VALUES IN (0);

-- Eight for as long as records are kept, the one that is written, one that waits to be emptied, and two to spare.
CREATE TABLE millpond_audit_1 PARTITION OF millpond_audit FOR VALUES IN (1) WITH (toast_tuple_target = 8160);
CREATE TABLE millpond_audit_2 PARTITION OF millpond_audit FOR VALUES IN (2) WITH (toast_tuple_target = 8160);
CREATE TABLE millpond_audit_3 PARTITION OF millpond_audit FOR VALUES IN (3) WITH (toast_tuple_target = 8160);
CREATE TABLE millpond_audit_4 PARTITION OF millpond_audit FOR VALUES IN (4) WITH (toast_tuple_target = 8160);
CREATE TABLE millpond_audit_5 PARTITION OF millpond_audit FOR VALUES IN (5) WITH (toast_tuple_target = 8160);
CREATE TABLE millpond_audit_6 PARTITION OF millpond_audit FOR VALUES IN (6) WITH (toast_tuple_target = 8160);
CREATE TABLE millpond_audit_7 PARTITION OF millpond_audit FOR VALUES IN (7) WITH (toast_tuple_target = 8160);
CREATE TABLE millpond_audit_8 PARTITION OF millpond_audit FOR VALUES IN (8) WITH (toast_tuple_target = 8160);
CREATE TABLE millpond_audit_9 PARTITION OF millpond_audit FOR VALUES IN (9) WITH (toast_tuple_target = 8160);
CREATE TABLE millpond_audit_10 PARTITION OF millpond_audit FOR VALUES IN (10) WITH (toast_tuple_target = 8160);
CREATE TABLE millpond_audit_11 PARTITION OF millpond_audit FOR VALUES IN (11) WITH (toast_tuple_target = 8160);

-- Ids of tasks that retention took, by the page and not by the task: `ids` holds those of a page. Releases
-- before this one write a row for each, in `id`. A look for one reads some twenty pages.
ALTER TABLE millpond_removed ALTER id DROP NOT NULL;
ALTER TABLE millpond_removed ADD COLUMN ids bigint[];
