//! A name server that never answers delays the pod that queries it, and nothing else.

use std::net::{Ipv4Addr, UdpSocket};

use super::*;
use crate::name_lookup::NameResolver;

/// Everything that shares a thread pool with lookups would be late by seconds.
const QUICK: Duration = Duration::from_secs(2);

#[test]
fn probes_that_wait_for_a_dead_name_server_delay_no_file_work() {
    // As few of tokio's shared threads as possible: a lookup on one of them is noticed.
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(2).enable_all().build().unwrap();
    // Bound and never read: a query is neither answered nor refused.
    let dead = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = dead.local_addr().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(&file, r#"{"auths": {"registry.example": {"auth": "dTpw"}}}"#).unwrap();
        let mut bench = Bench::with(|config| config.pulls.credential_dirs = vec![dir.path().to_owned()]);
        let executor = Arc::into_inner(bench.executor).expect("the only reference");
        bench.executor = Arc::new(executor.with_names(NameResolver::of_server(address)));
        let bench = Arc::new(bench);
        let begun = std::time::Instant::now();
        let mut probes = tokio::task::JoinSet::new();
        for n in 0..8 {
            let bench = Arc::clone(&bench);
            let action = json!({"host": format!("db-{n}.example"), "port": 80});
            let handler = if n % 2 == 0 { "httpGet" } else { "tcpSocket" };
            probes.spawn(async move { probe(&bench, json!({handler: action, "timeoutSeconds": 4})).await });
        }
        tokio::time::sleep(Duration::from_millis(200)).await;

        let pull = RuntimeCall::PullImage { name: "web".into(), image: "registry.example/x".into() };
        let pulled = tokio::time::timeout(QUICK, bench.call(web(), Call::Runtime(pull))).await;
        pulled.expect("credentials are read").unwrap();
        let read = tokio::time::timeout(QUICK, tokio::fs::read(&file)).await;
        assert!(read.expect("logs and other files are read").is_ok());
        assert!(begun.elapsed() < Duration::from_secs(4), "while the probes wait");

        while let Some(verdict) = probes.join_next().await {
            assert!(matches!(verdict.unwrap(), ProbeVerdict::Failure(_)));
        }
        assert!(begun.elapsed() < Duration::from_secs(6), "probes end at their timeout: {:?}", begun.elapsed());
    });
    let begun = std::time::Instant::now();
    drop(runtime);
    assert!(begun.elapsed() < QUICK, "no lookup outlives its probe");
}
