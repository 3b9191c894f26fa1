//! Calendar windows through real servers, on clocks that are years off. Redis's clock decides which window it is.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tollgate::grpc::pb::rate_limit_service_client::RateLimitServiceClient;
use tollgate::grpc::pb::{DecidedBy, ListPlansRequest, Outcome, ShouldAllowResponse};

use super::edges::{ZONES, days, edges_of};
use crate::support::preload::Shift;
use crate::support::redis::Redis;
use crate::support::server::{Client, Server, decide};
use tollgate::plan::CalendarUnit;

const QUOTA: u64 = 6;
const DAY_US: u64 = 86_400_000_000;
const YEAR_MS: i64 = 366 * 86_400_000;

/// A plan for the days of each zone, and one for its months.
fn plans() -> String {
    let plan = |zone: &&str| {
        let name = zone.replace('/', "-");
        format!(
            "  {name}: {{ limits: [ {{ quota: {QUOTA}, window: day, zone: {zone} }} ] }}\n\
             \x20 {name}.month: {{ limits: [ {{ quota: {QUOTA}, window: month, zone: {zone}, starts: 15 }} ] }}\n"
        )
    };
    let plans: String = ZONES.iter().map(plan).collect();
    format!("deny_cache: {{ entries: 0 }}\nstore: {{ deadline: 10s }}\nplans:\n{plans}")
}

fn us(time: prost_types::Duration) -> u64 {
    let whole = Duration::new(
        time.seconds.try_into().unwrap(),
        time.nanos.try_into().unwrap(),
    );
    whole.as_micros().try_into().unwrap()
}

/// A Redis whose clock is set, and replicas whose clocks are years off.
struct World {
    shift: Shift,
    redis: Redis,
    /// Redis's time is asked for before and after each decision: a process for each of them would take most of the time.
    times: BufReader<TcpStream>,
    clients: Vec<Client>,
    _replicas: Vec<Server>,
}

impl World {
    async fn new(config: &str, replicas_ms: &[i64]) -> Self {
        let shift = Shift::none();
        let redis = Redis::start_shifted(&shift);
        let mut clients = Vec::new();
        let mut replicas = Vec::new();
        for ms in replicas_ms {
            let own = Shift::none();
            own.by_ms(*ms);
            let variables = own.environment();
            let variables = variables
                .each_ref()
                .map(|(name, value)| (*name, value.as_str()));
            let replica = Server::start_in(config, &["--store", &redis.url()], &variables);
            clients.push(replica.client().await);
            replicas.push(replica);
        }
        let times = BufReader::new(TcpStream::connect(("127.0.0.1", redis.port)).unwrap());
        Self {
            shift,
            redis,
            times,
            clients,
            _replicas: replicas,
        }
    }

    /// Redis's time.
    fn now_us(&mut self) -> u64 {
        self.times.get_mut().write_all(b"TIME\r\n").unwrap();
        // How many numbers there are, and before each number its length.
        let lines = self.times.by_ref().lines().take(5);
        let lines: Vec<String> = lines.map(Result::unwrap).collect();
        let number = |line: usize| lines[line].parse::<u64>().unwrap();
        number(2) * 1_000_000 + number(4)
    }

    /// Sets Redis's clock to so long before or after an instant, while this machine's goes on.
    fn set(&mut self, at_us: u64, beside_ms: i64) {
        self.shift.by_ms(0);
        let real_ms = self.now_us() as i64 / 1_000;
        self.shift.by_ms(at_us as i64 / 1_000 + beside_ms - real_ms);
    }

    async fn ask(&mut self, replica: usize, key: &str, plan: &str) -> ShouldAllowResponse {
        let place = replica % self.clients.len();
        let answer = decide(&mut self.clients[place], key, plan).await;
        assert_eq!(answer.decided_by(), DecidedBy::Store, "{plan}");
        answer
    }

    /// Asks the replicas in turn until one denies. Checks that the denial's wait ends at the edge. Returns how many passed.
    async fn take_all(&mut self, key: &str, plan: &str, end_us: u64, length_us: u64) -> u64 {
        for granted in 0.. {
            let before_us = self.now_us();
            let answer = self.ask(granted as usize, key, plan).await;
            let after_us = self.now_us();
            assert_eq!(us(answer.window.unwrap()), length_us, "{plan}");
            for time in [answer.reset_after, answer.more_after, answer.retry_after] {
                let ends_us = time.map(us);
                let possible = end_us - after_us..=end_us - before_us;
                assert!(
                    ends_us.is_none_or(|ends_us| possible.contains(&ends_us)),
                    "{plan}: {ends_us:?}, not {possible:?}"
                );
            }
            assert!(answer.reset_after.is_some() && answer.more_after.is_some());
            if answer.outcome() == Outcome::Denied {
                assert!(answer.retry_after.is_some());
                return granted;
            }
        }
        unreachable!("a quota has an end")
    }
}

/// Of each zone one edge of a month, and those days of which one is longer or shorter than others.
#[tokio::test]
async fn replicas_whose_clocks_are_years_off_find_every_edge_by_the_clock_of_redis() {
    let mut world = World::new(&plans(), &[0, -40 * YEAR_MS, 80 * YEAR_MS]).await;
    let mut edges_seen = 0;
    let mut unusual = 0;
    for (zone, days) in days() {
        let of_days = edges_of(days, CalendarUnit::Day);
        let length = |day: usize| of_days[day + 1] - of_days[day];
        let after_2027 = of_days.partition_point(|edge| *edge < 1_830_000_000_000_000);
        let odd = (after_2027..of_days.len() - 2).find(|day| length(*day) != DAY_US);
        unusual += usize::from(odd.is_some());
        let day = odd.unwrap_or(after_2027);
        let of_months = edges_of(days, CalendarUnit::Month { starts: 15 });
        let name = zone.replace('/', "-");
        for (edges, at, plan) in [
            (&of_days, day, name.clone()),
            (&of_days, day + 1, name.clone()),
            (&of_months, 20, format!("{name}.month")),
        ] {
            let [before, edge, after] = [edges[at - 1], edges[at], edges[at + 1]];
            let key = format!("{edge}");
            world.set(edge, -5_000);
            let granted = world.take_all(&key, &plan, edge, edge - before).await;
            assert_eq!(granted, QUOTA, "{plan}, before the edge {edge}");
            world.set(edge, 1);
            let granted = world.take_all(&key, &plan, after, after - edge).await;
            assert_eq!(granted, QUOTA, "{plan}, after the edge {edge}");
            edges_seen += 1;
        }
    }
    println!("{edges_seen} edges, {unusual} of them of days of an unusual length");
    assert!(unusual > 15, "{unusual}");
}

#[tokio::test]
async fn a_redis_in_1970_or_2200_or_that_steps_over_an_edge_and_back_grants_one_quota_a_window() {
    let mut world = World::new(&plans(), &[0, 60 * YEAR_MS]).await;
    for (at_us, plan) in [
        (3_600_000_000, "UTC"),
        (3_600_000_000, "Asia-Tokyo.month"),
        (7_258_118_400_000_000, "UTC"),
        (7_258_118_400_000_000, "Europe-Berlin.month"),
    ] {
        world.set(at_us, 0);
        let mut granted = 0;
        for number in 0..2 * QUOTA {
            let answer = world.ask(number as usize, &format!("{at_us}"), plan).await;
            granted += u64::from(answer.allowed);
            let window_us = us(answer.window.unwrap());
            // The first month of 1970 has begun before time did.
            assert!(window_us <= 31 * DAY_US, "{plan}: {window_us}");
            assert!(us(answer.reset_after.unwrap()) <= window_us);
        }
        assert_eq!(granted, QUOTA, "{plan} at {at_us}");
    }
    let edges = edges_of(&days()["America/Havana"], CalendarUnit::Day);
    let edge = edges[edges.len() - 10];
    let mut granted = Vec::new();
    for beside_ms in [-60_000, 1, -60_000, 10_000, -1_000, 60_000] {
        world.set(edge, beside_ms);
        let mut passed = 0;
        for number in 0..2 * QUOTA {
            let answer = world.ask(number as usize, "back", "America-Havana").await;
            passed += u64::from(answer.allowed);
        }
        granted.push(passed);
    }
    // A step back blocks for a window, and moves none of its units into the one before.
    assert_eq!(granted, [QUOTA, QUOTA, 0, 0, 0, 0]);
}

/// A replica that was told Redis's time asks with the right windows from then on: it costs one call, not one for each decision.
#[tokio::test]
async fn a_wrong_clock_costs_a_replica_one_call_for_each_window() {
    let mut world = World::new(&plans(), &[30 * YEAR_MS]).await;
    world.ask(0, "warm", "Asia-Kolkata").await;
    world.redis.log_calls();
    for number in 0..20 {
        world.ask(0, &format!("key {number}"), "UTC").await;
    }
    let asked = world.redis.decision_calls();
    assert_eq!(asked, 21, "20 decisions, and one that told the time");
    let calendar = ListPlansRequest {};
    let answer = RateLimitServiceClient::list_plans(&mut world.clients[0], calendar).await;
    let plans = answer.unwrap().into_inner().plans;
    let tokyo = plans
        .iter()
        .find(|plan| plan.name == "Asia-Tokyo.month")
        .unwrap();
    let limit = &tokyo.limits[0];
    let calendar = limit.calendar.clone().unwrap();
    assert_eq!((limit.window, limit.anchor), (None, None));
    assert_eq!(limit.name, "fixed_window/month");
    assert_eq!(
        (calendar.unit, &*calendar.zone, calendar.starts),
        (3, "Asia/Tokyo", 15)
    );
}
