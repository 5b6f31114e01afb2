-- The claim spike, PostgreSQL: lease, fused with settle into step().

-- Plain pools: one index range. `ctid = any(array(..))` is a TID scan, it cannot become a join over the
-- backlog; no row locks, because CLAIM already excludes other claimers.
create function claim_plain(
    p pool, n int, v1 bigint, v2 bigint,
    out ids bigint[], out atts smallint[], out fresh int, out low bigint)
language plpgsql as $$
begin
    with gone as (
        delete from ready where ctid = any (array(
            select r.ctid from ready r where r.gid = p.root and (r.rank, r.seq) >= (v1, v2)
             order by r.rank, r.seq limit n))
        returning ready.rank, ready.seq, ready.id, ready.attempt, ready.fresh
    )
    select array_agg(g.id order by g.rank, g.seq),
           array_agg((g.attempt + 1)::smallint order by g.rank, g.seq),
           count(*) filter (where g.fresh), min(g.seq)
      into ids, atts, fresh, low from gone g;
end $$;

-- Pools with groups. Serving one by one means merging the groups' places: turn, turn + stride, ... in a
-- fair pool, the tasks' own (rank, seq) otherwise. One round takes the first members, a few tasks of each,
-- merges them, and stops at the first *barrier*: the place of something it did not read (the task behind
-- the last one read of a group, or the next member). Rounds repeat until n are taken; one is usual.
create function claim_grouped(
    p pool, n int, inout v1 bigint, inout v2 bigint,
    out ids bigint[], out atts smallint[], out gids bigint[], out fresh int)
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    r_ids bigint[];
    r_atts smallint[];
    r_gids bigint[];
    r_fresh int;
    r_v1 bigint;
    r_v2 bigint;
    wanted int := n;
    least_rank bigint := case when p.marked then 0 else -9223372036854775808 end;
begin
    ids := '{}'; atts := '{}'; gids := '{}'; fresh := 0;
    while wanted > 0 loop
        with member as materialized (
            select g.at, g.gid, g.o1, g.o2, g.stride, g.low, g.room,
                   row_number() over (order by g.o1, g.o2) as nr
              from (select k.ctid as at, k.gid, k.o1, k.o2, k.stride, k.low,
                           case when p.per_key > 1 then p.per_key - k.running
                                else coalesce(p.per_key, 2147483646) end as room
                      from grp k where k.pool = p.id and k.state = 1 and (k.o1, k.o2) > (v1, v2)
                     order by k.o1, k.o2 limit wanted + 1) g
        ), dealt as materialized (
            select ceil(wanted::numeric / greatest(1, least(wanted, count(*))))::int as share from member
        ), place as materialized (
            select m.at, m.gid, m.room, t.at as ready_at, t.seq, t.id, t.attempt, t.fresh,
                   case when p.fair then m.o1 + (t.nr - 1) * m.stride else t.rank end as p1,
                   case when p.fair then m.o2 else t.seq end as p2,
                   (t.nr > d.share)::int as barrier
              from dealt d cross join member m
              cross join lateral (
                   select x.*, row_number() over (order by x.rank, x.seq) as nr
                     from (select k.ctid as at, k.rank, k.seq, k.id, k.attempt, k.fresh
                             from ready k
                            where k.gid = m.gid and (k.rank, k.seq) >= (least_rank, m.low)
                            order by k.rank, k.seq limit least(d.share + 1, m.room)) x) t
             where m.nr <= wanted
            union all
            select null, null, null, null, null, null, null, null, m.o1, m.o2, 1
              from member m where m.nr > wanted
        ), merged as materialized (
            select c.*, c.crossed = 0 and c.nr <= wanted as taken
              from (select a.*, sum(a.barrier) over places as crossed, row_number() over places as nr
                      from place a window places as (order by a.p1, a.p2 rows unbounded preceding)) c
        ), gone as (
            delete from ready where ctid = any (array(select t.ready_at from merged t where t.taken))
        ), served as materialized (
            select t.at, count(*) filter (where t.taken) as k, min(t.room) as room,
                   max(t.seq) filter (where t.taken) as last,
                   min(array[t.p1, t.p2]) filter (where not t.taken) as next
              from merged t where t.gid is not null group by t.at
        ), moved as (
            update grp set
                ver = grp.ver + 1,
                low = x.last,
                running = case when p.per_key > 1 then grp.running + x.k else 0 end,
                state = case when x.k >= x.room then 2 when x.next is null then 0 else 1 end,
                o1 = case when p.fair then grp.o1 + x.k * grp.stride else coalesce(x.next[1], grp.o1) end,
                o2 = case when p.fair then grp.o2 else coalesce(x.next[2], grp.o2) end
              from served x where grp.ctid = x.at and x.k > 0
        )
        select array_agg(t.id order by t.nr), array_agg((t.attempt + 1)::smallint order by t.nr),
               array_agg(t.gid order by t.nr), count(*) filter (where t.fresh),
               (array_agg(t.p1 order by t.nr desc))[1], (array_agg(t.p2 order by t.nr desc))[1]
          into r_ids, r_atts, r_gids, r_fresh, r_v1, r_v2 from merged t where t.taken;
        exit when r_ids is null;
        ids := ids || r_ids; atts := atts || r_atts; gids := gids || r_gids; fresh := fresh + r_fresh;
        if p.fair then
            v1 := r_v1; v2 := r_v2;
        end if;
        wanted := wanted - cardinality(r_ids);
    end loop;
end $$;

-- Due work becomes ready: at most 1000 per call, oldest first. Caller holds CLAIM.
create function promote(p pool, p_now bigint) returns void
language plpgsql as $$
declare
    due_gids bigint[];
    gids bigint[];
    seqs bigint[];
begin
    if p.blocks then
        select array_agg(w.gid) into due_gids from (
            select g.gid from grp g where g.pool = p.id and g.state = 3 and g.due <= p_now
             order by g.due, g.gid limit 1000) w;
    else
        with gone as (
            delete from later l where l.ctid = any (array(
                select k.ctid from later k where k.pool = p.id and k.due <= p_now
                 order by k.due, k.seq limit 1000))
            returning l.due, l.seq, l.id, l.attempt, l.fresh
        ), back as (
            insert into ready (gid, rank, seq, id, due, attempt, fresh)
            select t.gid, t.rank, t.seq, t.id, 0, g.attempt, g.fresh from gone g
             cross join lateral (select k.* from task k where k.id = g.id offset 0) t
            returning ready.gid, ready.seq
        )
        select array_agg(b.gid order by g.due, g.seq), array_agg(b.seq order by g.due, g.seq)
          into gids, seqs from gone g join back b on b.seq = g.seq;
        perform lower_marks(p, gids, seqs);
        select array_agg(f.gid order by f.ord) into due_gids
          from (select u.gid, min(u.ord) as ord from unnest(gids) with ordinality u(gid, ord)
                 group by u.gid) f;
    end if;
    if due_gids is not null and p.grouped then
        perform enter_groups(p, due_gids, null, p.blocks, p_now);
    end if;
end $$;

-- The one hot statement: settle the last batch, lease the next, one round trip, one commit.
-- READ COMMITTED: every statement has its own snapshot, and CLAIM is taken in an earlier one than the
-- count. One big CTE would count with the snapshot from before it waited, and overshoot.
-- p_floor: the lowest seq a notification announced, or 0 to scan a plain fifo pool from its beginning.
create function step(
    p_pool int, p_worker int, s_ids bigint[], s_atts smallint[], s_toks bigint[], s_outs smallint[],
    s_dues bigint[], s_results bytea[], p_want int, p_token bigint, p_now bigint, p_floor bigint,
    out stale int, out ids bigint[], out atts smallint[], out payloads bytea[])
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
    p pool;
    h holding;
    ps pstate;
    n int;
    elsewhere int;
    gids bigint[];
    fresh int := 0;
    low bigint;
    needs_lock boolean;
begin
    select * into p from pool where id = p_pool;
    -- The fleet is counted through `worker`: who is not in it may hold nothing.
    if not exists (select from worker w where w.id = p_worker) then
        raise 'worker % is not registered', p_worker;
    end if;
    select * into h from holding k where k.pool = p_pool and k.worker = p_worker
     order by k.seq desc limit 1 for update;
    if h.seq is null then
        h := row(p_pool, p_worker, 0, 0, '{}', '{}', '{}', '{}', '{}')::holding;
    end if;
    needs_lock := p.grouped or s_dues is not null;
    if needs_lock then
        perform pg_advisory_xact_lock(2, p_pool);
    end if;
    stale := 0;
    if cardinality(s_ids) > 0 then
        select s.stale, (s.kept).n, (s.kept).ids, (s.kept).atts, (s.kept).toks, (s.kept).gids,
               (s.kept).starts
          into stale, h.n, h.ids, h.atts, h.toks, h.gids, h.starts
          from settle_held(p, h, s_ids, s_atts, s_toks, s_outs, coalesce(s_dues, '{}'), s_results,
                           p_now) s;
    end if;
    if not needs_lock then
        perform pg_advisory_xact_lock(2, p_pool);
    end if;
    if (p.blocks and exists (select from grp g where g.pool = p_pool and g.state = 3 and g.due <= p_now))
       or exists (select from later l where l.pool = p_pool and l.due <= p_now) then
        perform promote(p, p_now);
    end if;
    select coalesce(sum(l.n), 0) into elsewhere from worker w
     cross join lateral (select k.n from holding k where k.pool = p_pool and k.worker = w.id
                          order by k.seq desc limit 1) l
     where w.id <> p_worker;
    n := least(p_want, p.cap - elsewhere - h.n);
    select * into ps from pstate k where k.pool = p_pool order by k.seq desc limit 1;
    if n > 0 and p.grouped then
        select c.ids, c.atts, c.gids, c.fresh, c.v1, c.v2 into ids, atts, gids, fresh, ps.v1, ps.v2
          from claim_grouped(p, n, case when p.fair then ps.v1 else -9223372036854775808 end, ps.v2) c;
        if not p.fair then
            ps.v1 := 0;
        end if;
    elsif n > 0 then
        select c.ids, c.atts, c.fresh, c.low into ids, atts, fresh, low
          from claim_plain(p, n, case when p.marked then 0 else -9223372036854775808 end,
                           case when p.marked then least(ps.v2, p_floor) else 0 end) c;
        gids := array_fill(p.root, array[coalesce(cardinality(ids), 0)]);
        ps.v2 := coalesce(low, least(ps.v2, p_floor));
    end if;
    n := coalesce(cardinality(ids), 0);
    delete from pstate k where k.pool = p_pool and k.seq = ps.seq;
    insert into pstate values (p_pool, ps.seq + 1, ps.out_total + fresh, ps.stale + stale, ps.v1, ps.v2);
    delete from holding k where k.pool = p_pool and k.worker = p_worker and k.seq = h.seq;
    if n = 0 then
        insert into holding values (h.pool, h.worker, h.seq + 1, h.n, h.ids, h.atts, h.toks, h.gids, h.starts);
        ids := '{}'; atts := '{}'; payloads := '{}';
        return;
    end if;
    insert into holding values (h.pool, h.worker, h.seq + 1, h.n + n, h.ids || ids, h.atts || atts,
        h.toks || array_fill(p_token, array[n]), h.gids || gids, h.starts || array_fill(p_now, array[n]));
    select array_agg(t.payload order by u.ord) into payloads from unnest(ids) with ordinality u(id, ord)
     cross join lateral (select k.payload from task k where k.id = u.id offset 0) t;
end $$;
