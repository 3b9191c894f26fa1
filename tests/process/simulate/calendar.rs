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
