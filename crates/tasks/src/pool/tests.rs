//! Work that hangs, fails or waits in the pool.

use super::*;
use std::sync::mpsc;

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(30);

/// A closure that hangs until the sender goes away.
fn hanging() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
    let (release, held) = mpsc::channel::<()>();
    (release, move || assert!(held.recv().is_err()))
}

async fn until(what: &str, check: impl Fn() -> bool) {
    for _ in 0..1000 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}");
}

#[tokio::test]
async fn the_result_of_the_closure_is_returned() {
    let pool = Pool::default();
    assert_eq!(pool.run("a", LONG, || 7).await, Ok(7));
    until("the key is forgotten", || pool.0.groups().is_empty()).await;
}

#[tokio::test]
async fn a_hung_closure_delays_no_other() {
    let pool = Pool::new(PoolLimits { per_key: 2, active: 2, stuck: 10, ..PoolLimits::default() });
    let mut releases = Vec::new();
    for _ in 0..2 {
        let (release, hang) = hanging();
        releases.push(release);
        let error = pool.run("dead", SHORT, hang).await.unwrap_err();
        assert!(matches!(error, PoolError::Timeout { .. }) && error.in_doubt());
    }
    // All permits for active work would be in use if abandoned work kept them.
    let begun = Instant::now();
    for _ in 0..20 {
        pool.run("alive", LONG, || ()).await.unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    let error = pool.run("dead", LONG, || ()).await.unwrap_err();
    assert_eq!(error, PoolError::Stuck { key: "dead".into(), count: 2 });
    assert!(!error.in_doubt());
    drop(releases);
    until("they come back", || pool.stuck() == 0).await;
    pool.run("dead", LONG, || ()).await.unwrap();
}

#[tokio::test]
async fn a_key_with_one_hung_thread_has_another() {
    let pool = Pool::default();
    let (release, hang) = hanging();
    pool.run("slow", SHORT, hang).await.unwrap_err();
    pool.run("slow", LONG, || ()).await.unwrap();
    drop(release);
}

#[tokio::test]
async fn a_cancelled_caller_abandons_its_closure() {
    let pool = Pool::new(PoolLimits { per_key: 1, ..PoolLimits::default() });
    let (release, hang) = hanging();
    let task = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run("x", LONG, hang).await }
    });
    until("it runs", || {
        let groups = pool.0.groups();
        groups.get(&(Scope::Key, "x".into())).is_some_and(|group| group.slots.available_permits() == 0)
    })
    .await;
    assert_eq!(pool.stuck(), 0);
    task.abort();
    until("it is given up", || pool.stuck() == 1).await;
    drop(release);
    until("it ends", || pool.stuck() == 0).await;
}

#[tokio::test]
async fn waiting_for_the_key_counts_as_time() {
    let pool = Pool::new(PoolLimits { per_key: 1, ..PoolLimits::default() });
    let (release, hang) = hanging();
    let first = pool.run("x", LONG, hang);
    let second = async {
        tokio::task::yield_now().await;
        let error = pool.run("x", SHORT, || ()).await.unwrap_err();
        drop(release);
        error
    };
    let (first, second) = tokio::join!(first, second);
    assert!(matches!(second, PoolError::Busy { .. }) && !second.in_doubt());
    first.unwrap();
}

#[tokio::test]
async fn too_many_hung_threads_refuse_all() {
    let pool = Pool::new(PoolLimits { per_key: 2, active: 8, stuck: 3, ..PoolLimits::default() });
    let mut releases = Vec::new();
    for i in 0..3 {
        let (release, hang) = hanging();
        releases.push(release);
        pool.run(format!("dead {i}"), SHORT, hang).await.unwrap_err();
    }
    assert_eq!(pool.run("alive", LONG, || ()).await, Err(PoolError::Full(3)));
    drop(releases);
    until("they come back", || pool.stuck() == 0).await;
    pool.run("alive", LONG, || ()).await.unwrap();
}

#[tokio::test]
async fn a_panic_is_an_error() {
    let error = Pool::default().run("a", LONG, || panic!("oh {}", 1)).await.unwrap_err();
    assert_eq!(error, PoolError::Panicked("oh 1".into()));
}

#[tokio::test]
async fn a_pod_with_many_hung_volumes_does_not_use_up_the_threads_of_others() {
    let pool = Pool::new(PoolLimits { per_owner: 3, active: 4, stuck: 10, ..PoolLimits::default() });
    let mut releases = Vec::new();
    for volume in 0..3 {
        let (release, hang) = hanging();
        releases.push(release);
        pool.run(PoolKey::new("greedy", format!("path /{volume}")), SHORT, hang).await.unwrap_err();
    }
    let error = pool.run(PoolKey::new("greedy", "path /3"), LONG, || ()).await.unwrap_err();
    assert_eq!(error, PoolError::Stuck { key: "greedy".into(), count: 3 });
    pool.run(PoolKey::new("other", "path /0"), LONG, || ()).await.unwrap();
    drop(releases);
    until("they come back", || pool.stuck() == 0).await;
    pool.run(PoolKey::new("greedy", "path /3"), LONG, || ()).await.unwrap();
}

#[tokio::test]
async fn work_that_is_waited_for_delays_others_by_a_second_at_most() {
    let pool = Pool::new(PoolLimits { active: 2, ..PoolLimits::default() });
    let mut releases = Vec::new();
    let mut tasks = Vec::new();
    for i in 0..2 {
        let (release, hang) = hanging();
        releases.push(release);
        let pool = pool.clone();
        tasks.push(tokio::spawn(async move { pool.run_to_end(format!("slow {i}"), hang).await }));
    }
    until("both run", || pool.0.active.available_permits() == 0).await;
    let begun = Instant::now();
    pool.run("quick", LONG, || ()).await.unwrap();
    assert!(begun.elapsed() < 3 * ACTIVE_TIME_MAX, "{:?}", begun.elapsed());
    assert_eq!(pool.stuck(), 2);
    drop(releases);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!((pool.stuck(), pool.0.active.available_permits()), (0, 2));
}
