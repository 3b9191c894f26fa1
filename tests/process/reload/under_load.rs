//! Reloads under load: each call is decided by one version of the plans.

use std::time::{Duration, Instant};

use tokio_stream::StreamExt;
use tollgate::grpc::pb;

use super::{Live, config, plan};
use crate::support::server::{PATIENCE, decide, request};

/// What the kubelet does to a ConfigMap's volume: the file is a link through `..data`, and that one is replaced.
fn publish(folder: &std::path::Path, version: u64, plans: &str) {
    let name = format!("..version {version}");
    let at = |name: &str| folder.join(name);
    std::fs::create_dir(at(&name)).unwrap();
    std::fs::write(at(&name).join("config.yaml"), config(plans)).unwrap();
    std::os::unix::fs::symlink(name, at("..data_tmp")).unwrap();
    std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
    if let Some(last) = version.checked_sub(1) {
        // The first has none before it.
        let _ = std::fs::remove_dir_all(at(&format!("..version {last}")));
    }
}

/// A hundred swaps under load, at a pace that meets the server's polls at every point: each poll sees one version, whole, and
/// the last is taken up soon.
#[tokio::test]
async fn fault_21_the_swap_of_a_config_map_is_taken_up_and_none_is_half_read() {
    const SWAPS: u64 = 100;
    const QUOTA: u64 = 50_000;
    let folder = tempfile::tempdir().unwrap();
    // So large that it is not read by one call, each version with quotas of its own.
    let plans = |version: u64| {
        (0..500)
            .map(|name| plan(&format!("p{name}"), QUOTA + version))
            .collect::<String>()
    };
    publish(folder.path(), 1, &plans(1));
    std::os::unix::fs::symlink("..data/config.yaml", folder.path().join("config.yaml")).unwrap();
    let mut live = Live::start_in(folder, &[]).await;
    let mut used = 0;
    let mut slowest = Duration::ZERO;
    for version in 2..=SWAPS {
        publish(live.folder.path(), version, &plans(version));
        let swapped = Instant::now();
        loop {
            assert!(decide(&mut live.client, "k", "p0").await.allowed);
            used += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
            let listed = live.list().await;
            let quotas: Vec<u64> = listed
                .plans
                .iter()
                .map(|plan| plan.limits[0].quota)
                .collect();
            assert!(
                quotas.len() == 500 && quotas.iter().all(|quota| *quota == quotas[0]),
                "{quotas:?}"
            );
            // Most are swapped again before anybody has looked, or while somebody does.
            if version % 10 != 0 || quotas[0] == QUOTA + version {
                break;
            }
            assert!(
                swapped.elapsed() < PATIENCE,
                "never version {version}: {}",
                live.server.log()
            );
        }
        slowest = slowest.max(swapped.elapsed());
    }
    println!(
        "{} of {SWAPS} versions taken up, the slowest {slowest:?} after its swap",
        live.reloads("success") + 1.0
    );
    assert_eq!(
        decide(&mut live.client, "k", "p0").await.remaining(),
        QUOTA + SWAPS - used - 1
    );
    assert_eq!(live.reloads("failure"), 0.0);
}

#[tokio::test]
async fn a_stream_takes_up_the_new_plans_with_its_next_message() {
    let mut live = Live::start(&plan("p", 5), &[]).await;
    let (asking, asked) = tokio::sync::mpsc::channel(1);
    let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
    let mut answers = live
        .client
        .should_allow_stream(asked)
        .await
        .unwrap()
        .into_inner();
    for (id, quota, remaining) in [(0, 5, 4), (1, 3, 1), (2, 9, 6)] {
        if id > 0 {
            live.replace_at_once(quota).await;
        }
        asking
            .send(pb::ShouldAllowStreamRequest {
                id,
                request: Some(request("k", "p", None)),
            })
            .await
            .unwrap();
        let answer = answers.next().await.unwrap().unwrap();
        let Some(pb::should_allow_result::Result::Response(response)) =
            answer.result.unwrap().result
        else {
            panic!("no answer")
        };
        assert_eq!(
            (answer.id, response.limit(), response.remaining()),
            (id, quota, remaining)
        );
    }
}

/// Batches on every worker while the file changes: no call fails, and none is decided by two editions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_worker_takes_it_up_and_no_batch_is_of_two_minds() {
    const RELOADS: u64 = 10;
    let mut live = Live::start(&plan("p", 1_000), &["--set", "workers=3"]).await;
    let mut callers = Vec::new();
    for _ in 0..3 {
        let mut client = live.server.client().await;
        callers.push(tokio::spawn(async move {
            let mut last = 1_000;
            let mut seen = 1;
            while last < 1_000 + RELOADS {
                let requests = (0..200)
                    .map(|key| request(&key.to_string(), "p", None))
                    .collect();
                let batch = client
                    .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
                    .await
                    .unwrap()
                    .into_inner();
                let limits: Vec<u64> = batch.results.into_iter().map(limit_of).collect();
                assert!(limits.iter().all(|limit| *limit == limits[0]), "{limits:?}");
                assert!(limits[0] >= last, "{} after {last}", limits[0]);
                seen += u64::from(limits[0] > last);
                last = limits[0];
            }
            seen
        }));
    }
    for reload in 1..=RELOADS {
        live.replace_at_once(1_000 + reload).await;
    }
    for caller in callers {
        println!("saw {} of {} editions", caller.await.unwrap(), RELOADS + 1);
    }
}

fn limit_of(result: pb::ShouldAllowResult) -> u64 {
    match result.result.unwrap() {
        pb::should_allow_result::Result::Response(response) => response.limit(),
        pb::should_allow_result::Result::Error(error) => panic!("{error:?}"),
    }
}
