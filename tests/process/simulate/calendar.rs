//! Calendar windows in `tollgate simulate`, by hand.

use super::Folder;

/// A request an hour, from 2027-10-28T00:00:00Z to 2027-11-02T23:00:00Z. November begins in Berlin at 23:00 UTC on the 31st, after 95
/// requests, and in New York at 04:00 UTC on the 1st, after 100.
#[test]
fn a_month_of_another_zone_denies_other_requests() {
    let folder = Folder::new();
    let lines: Vec<String> = (0..6 * 24)
        .map(|hour| {
            let day = 28 + hour / 24;
            let (month, day) = if day > 31 {
                ("Nov", day - 31)
            } else {
                ("Oct", day)
            };
            let time = format!("{day:02}/{month}/2027:{:02}:00:00 +0000", hour % 24);
            format!("a - - [{time}] \"GET / HTTP/1.1\" 200 512 \"-\" \"curl/8\"\n")
        })
        .collect();
    folder.put("access.log", lines.concat().as_bytes());
    for (zone, before, after) in [("Europe/Berlin", 95, 49), ("America/New_York", 100, 44)] {
        let limit = format!("{{ quota: 48, window: month, zone: {zone} }}");
        let plans = format!("plans: {{ free: {{ limits: [ {limit} ] }} }}\n");
        folder.put("plans.yaml", plans.as_bytes());
        let report = folder.json_report(&[]);
        let result = &report["results"][0];
        let denied = before - 48 + i32::max(after - 48, 0);
        assert_eq!(result["denied"], denied, "{zone}: {report}");
        let told = &result["plans"][0]["limits"][0];
        assert_eq!(told["smallest"], before, "{zone}: {told}");
        assert_eq!(told["window"], format!("month in {zone}"));
        assert_eq!(told["limit"], "fixed_window/month");
        let text = folder.text_report(&[]).replace('\n', " ");
        assert!(
            text.contains(&format!("48 in month in {zone} by fixed_window")),
            "{text}"
        );
    }
}

/// When months begin by the clocks of two zones, from September to December 2027, in seconds since 1970. By hand: Berlin goes back on
/// 31 October, New York on 7 November.
const MONTHS: [(&str, [i64; 4]); 2] = [
    // 31 August 22:00, 30 September 22:00, 31 October 23:00 and 30 November 23:00 in UTC.
    (
        "Europe/Berlin",
        [1_819_749_600, 1_822_341_600, 1_825_023_600, 1_827_615_600],
    ),
    // The 1st of each month, 04:00, 04:00, 04:00 and 05:00 in UTC.
    (
        "America/New_York",
        [1_819_771_200, 1_822_363_200, 1_825_041_600, 1_827_637_200],
    ),
];

/// Two and a half months of three clients, whose months are counted here by their edges.
#[test]
fn months_of_two_zones_deny_what_a_count_by_their_edges_does() {
    const QUOTA: usize = 900;
    let folder = Folder::new();
    let first = MONTHS[0].1[0];
    let last = MONTHS[1].1[3];
    // Each asks every so many seconds. The last of them also asks at each edge, and a second before.
    let edges = MONTHS.iter().flat_map(|(_, edges)| edges);
    let edges = edges.flat_map(|edge| [edge - 1, *edge]);
    let mut requests: Vec<(i64, &str)> = edges.map(|at| (at, "c")).collect();
    for (client, step) in [("a", 2_221), ("b", 3_301), ("c", 1_811)] {
        let times = (first..last).step_by(step);
        requests.extend(times.map(|at| (at, client)));
    }
    requests.retain(|(at, _)| (first..last).contains(at));
    requests.sort_unstable();
    let lines = requests.iter();
    let lines = lines.map(|(at, client)| format!("{{\"time\": {at}, \"key\": \"{client}\"}}\n"));
    folder.put("access.log", lines.collect::<String>().as_bytes());
    for (zone, edges) in MONTHS {
        let mut counts = std::collections::BTreeMap::<_, usize>::new();
        for (at, client) in &requests {
            let month = edges.iter().filter(|edge| *edge <= at).count();
            *counts.entry((client, month)).or_default() += 1;
        }
        let denied: usize = counts
            .values()
            .map(|count| count.saturating_sub(QUOTA))
            .sum();
        let most = counts.values().max().unwrap();
        let limit = format!("{{ quota: {QUOTA}, window: month, zone: {zone} }}");
        let plans = format!("plans: {{ free: {{ limits: [ {limit} ] }} }}\n");
        folder.put("plans.yaml", plans.as_bytes());
        let report = folder.json_report(&["--format", "json", "--key", "$key"]);
        for result in report["results"].as_array().unwrap() {
            assert!(denied > 1_000, "{denied}");
            assert_eq!(result["denied"], denied, "{zone}: {report}");
            assert_eq!(result["plans"][0]["limits"][0]["smallest"], *most, "{zone}");
        }
    }
}
