//! A failed task is reported with its name; a normal end is not.

use super::*;

const LONG: Duration = Duration::from_secs(60);

async fn first_failure(supervisor: &mut Supervisor) -> Option<TaskFailure> {
    tokio::time::timeout(Duration::from_secs(1), supervisor.failed()).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_service_that_ends_or_panics_is_a_failure() {
    let (tasks, mut supervisor) = Tasks::supervised(CancellationToken::new());
    tasks.service("lease", async {});
    assert_eq!(first_failure(&mut supervisor).await, Some(TaskFailure::Ended { name: "lease" }));
    tasks.service("lease", async { panic!("no {}", "luck") });
    let failure = first_failure(&mut supervisor).await.expect("a panic is a failure");
    assert_eq!(failure.to_string(), "task lease panicked: no luck");
}

#[tokio::test(start_paused = true)]
async fn a_job_may_end_and_a_service_may_end_after_the_stop() {
    let stop = CancellationToken::new();
    let (tasks, mut supervisor) = Tasks::supervised(stop.clone());
    tasks.job("first list", async {});
    let stopped = stop.clone();
    tasks.drained_service("listener", async move { stopped.cancelled().await });
    assert_eq!(first_failure(&mut supervisor).await, None);
    stop.cancel();
    assert_eq!(first_failure(&mut supervisor).await, None);
    assert!(supervisor.drain(LONG).await, "both have ended");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_panics_is_a_failure() {
    let (tasks, mut supervisor) = Tasks::supervised(CancellationToken::new());
    tasks.job("first list", async { panic!("broken") });
    let failure = TaskFailure::Panicked { name: "first list", message: "broken".into() };
    assert_eq!(first_failure(&mut supervisor).await, Some(failure));
}

#[tokio::test(start_paused = true)]
async fn an_aborted_service_is_not_a_failure() {
    let (tasks, mut supervisor) = Tasks::supervised(CancellationToken::new());
    tasks.service("watch", std::future::pending()).abort();
    assert_eq!(first_failure(&mut supervisor).await, None);
    assert!(supervisor.drain(LONG).await);
}

#[tokio::test(start_paused = true)]
async fn the_stop_drops_services_and_waits_for_drained_ones() {
    let stop = CancellationToken::new();
    let (tasks, supervisor) = Tasks::supervised(stop.clone());
    tasks.service("timer", std::future::pending());
    stop.cancel();
    assert!(supervisor.drain(LONG).await, "a plain service is dropped");
    let (tasks, supervisor) = Tasks::supervised(stop);
    tasks.drained_service("stuck", std::future::pending());
    assert!(!supervisor.drain(LONG).await, "a task that hangs is given up");
}

#[tokio::test]
async fn the_owner_of_work_sees_its_panic() {
    assert_eq!(spawn("sum", async { 3 }).await.expect("it ends well"), 3);
    assert!(spawn("sum", async { panic!("overflow") }).await.is_err_and(|error| error.is_panic()));
    assert_eq!(catch(async { panic!("overflow") }).await, Err::<(), _>(Panicked("overflow".to_owned())));
}

#[tokio::test]
async fn a_thread_that_panics_is_a_failure_with_its_message() {
    let (tasks, mut supervisor) = Tasks::supervised(CancellationToken::new());
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let (_, end) = spawn_thread("journal", move || {
        let _ = may_go_on.recv();
        panic!("no {}", "disk");
    })
    .unwrap();
    tasks.service("journal", end.wait());
    assert_eq!(first_failure(&mut supervisor).await, None, "it runs");
    drop(go_on);
    let failure = TaskFailure::Panicked { name: "journal", message: "no disk".into() };
    assert_eq!(first_failure(&mut supervisor).await, Some(failure));
}

#[tokio::test]
async fn a_thread_that_ends_is_a_failure_of_a_service_and_not_of_a_job() {
    let (tasks, mut supervisor) = Tasks::supervised(CancellationToken::new());
    tasks.job("collector", spawn_thread("collector", || {}).unwrap().1.wait());
    assert_eq!(first_failure(&mut supervisor).await, None);
    tasks.service("journal", spawn_thread("journal", || {}).unwrap().1.wait());
    assert_eq!(first_failure(&mut supervisor).await, Some(TaskFailure::Ended { name: "journal" }));
}
