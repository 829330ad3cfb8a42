//! The tables of the state machines, cell by cell, and lists of events.

mod model;
mod sandbox;

use std::time::Duration;

use super::*;

const NOW: Moment = Moment { boot: Duration::from_secs(100), wall_ns: 5 };

fn sid() -> SandboxId {
    SandboxId("s".into())
}

fn cid() -> ContainerId {
    ContainerId("c".into())
}

fn key() -> ContainerKey {
    ContainerKey { sandbox: sid(), name: "web".into(), attempt: 0 }
}

fn sandbox_key() -> SandboxKey {
    SandboxKey { name: "p".into(), namespace: "d".into(), uid: "u".into(), attempt: 0 }
}

fn planned() -> SandboxResources {
    SandboxResources { shim: true, namespaces: true, network: true, shm: true, pause: false }
}

fn failure() -> Failure {
    Failure::new("boom")
}

/// Machines, and the effects of the last event as text.
struct Bench {
    machines: Machines,
    now: Moment,
    last: Vec<String>,
}

impl Bench {
    fn empty() -> Self {
        Self { machines: Machines::default(), now: NOW, last: vec![] }
    }

    /// With a sandbox that is ready.
    fn ready() -> Self {
        let mut bench = Self::empty();
        bench.feed(MachineEvent::Run { id: sid(), waiter: WaiterId(90), key: sandbox_key(), planned: planned() });
        for step in [SandboxStep::WriteRecord, SandboxStep::ForkShim, SandboxStep::SetUpNamespaces, SandboxStep::Attach]
        {
            bench.sandbox(SandboxEvent::StepDone(step, Ok(())));
        }
        bench
    }

    /// With a container in the named state.
    fn container(state: &str) -> Self {
        let mut bench = Self::ready();
        bench.feed(MachineEvent::Create { id: cid(), waiter: WaiterId(91), key: key() });
        let path: Vec<ContainerEvent> = match state {
            "Creating" => vec![],
            "Created" => vec![created()],
            "Starting" => vec![created(), start()],
            "Running" | "Unknown" => vec![created(), start(), ContainerEvent::Launched],
            "Exited" => vec![created(), start(), ContainerEvent::Launched, exited(3)],
            "Removing" => vec![created(), ContainerEvent::Remove(WaiterId(93))],
            other => panic!("no state {other}"),
        };
        for event in path {
            bench.on(event);
        }
        if state == "Unknown" {
            bench.sandbox(SandboxEvent::ShimLost);
            bench.sandbox(SandboxEvent::Adopted(Ok(vec![])));
        }
        bench
    }

    fn feed(&mut self, event: MachineEvent) -> &[String] {
        let mut out = vec![];
        self.machines.handle(event, self.now, &mut out);
        self.last = out.iter().map(text).collect();
        &self.last
    }

    fn on(&mut self, event: ContainerEvent) -> &[String] {
        self.feed(MachineEvent::Container(cid(), event))
    }

    fn sandbox(&mut self, event: SandboxEvent) -> &[String] {
        self.feed(MachineEvent::Sandbox(sid(), event))
    }

    fn pass(&mut self, seconds: u64) {
        self.now.boot += Duration::from_secs(seconds);
    }

    fn shown(&self) -> Option<ShownContainer> {
        self.machines.container(&cid()).and_then(Container::shown)
    }
}

fn created() -> ContainerEvent {
    ContainerEvent::CreateDone(Ok(()))
}

fn start() -> ContainerEvent {
    ContainerEvent::Start(WaiterId(92))
}

fn exited(code: i32) -> ContainerEvent {
    ContainerEvent::Exited(ExitRecord::of_process(code, false, 7))
}

fn stop(waiter: u64, seconds: u64) -> ContainerEvent {
    ContainerEvent::Stop(WaiterId(waiter), Duration::from_secs(seconds))
}

fn alive(stop_signal_sent: bool) -> Found {
    Found::Alive { stop_signal_sent }
}

/// An effect in few characters.
fn text(effect: &MachineEffect) -> String {
    match effect {
        MachineEffect::Answer(WaiterId(waiter), Ok(())) => format!("{waiter} ok"),
        MachineEffect::Answer(WaiterId(waiter), Err(refusal)) => format!("{waiter} {refusal}"),
        MachineEffect::Sandbox(_, SandboxEffect::Step(step)) => format!("{step:?}"),
        MachineEffect::Sandbox(_, SandboxEffect::AdoptAfter(pause)) => format!("Adopt after {}", pause.as_secs()),
        MachineEffect::Sandbox(_, SandboxEffect::Persist(SandboxRecordState::Creating(_))) => "sandbox Creating".into(),
        MachineEffect::Sandbox(_, SandboxEffect::Persist(SandboxRecordState::Ready(_))) => "sandbox Ready".into(),
        MachineEffect::Sandbox(_, SandboxEffect::Persist(SandboxRecordState::NotReady(_))) => "sandbox NotReady".into(),
        MachineEffect::Sandbox(_, SandboxEffect::Publish(event)) => format!("sandbox {event:?}!"),
        MachineEffect::Container(_, ContainerEffect::Persist(ContainerRecordState::Exited(record))) => {
            format!("record {} {}", record.code, record.reason)
        }
        MachineEffect::Container(_, ContainerEffect::Persist(state)) => format!("record {state:?}"),
        MachineEffect::Container(_, ContainerEffect::Publish(event)) => format!("{event:?}!"),
        MachineEffect::Container(_, ContainerEffect::WakeAt(at)) => format!("wake {}", at.as_secs()),
        MachineEffect::Container(_, effect) => format!("{effect:?}"),
    }
}

/// Each cell: state, event, effects.
fn check_cells(cells: &[(&str, ContainerEvent, &[&str])]) {
    for (state, event, expected) in cells {
        let mut bench = Bench::container(state);
        assert_eq!(bench.on(event.clone()), *expected, "{event:?} in {state}");
    }
}

#[test]
fn start_in_every_state() {
    check_cells(&[
        ("Creating", ContainerEvent::Start(WaiterId(1)), &["1 container \"c\" not found"]),
        ("Created", ContainerEvent::Start(WaiterId(1)), &["record Starting", "Launch"]),
        ("Starting", ContainerEvent::Start(WaiterId(1)), &["1 container is already in starting state"]),
        (
            "Running",
            ContainerEvent::Start(WaiterId(1)),
            &["1 container must be in created state, but is CONTAINER_RUNNING"],
        ),
        (
            "Unknown",
            ContainerEvent::Start(WaiterId(1)),
            &["1 container must be in created state, but is CONTAINER_UNKNOWN"],
        ),
        (
            "Exited",
            ContainerEvent::Start(WaiterId(1)),
            &["1 container must be in created state, but is CONTAINER_EXITED"],
        ),
        ("Removing", ContainerEvent::Start(WaiterId(1)), &["1 container \"c\" not found"]),
    ]);
    assert_eq!(Bench::empty().on(ContainerEvent::Start(WaiterId(1))), ["1 container \"c\" not found"], "an unknown id");
}

#[test]
fn stop_in_every_state() {
    check_cells(&[
        ("Creating", stop(1, 10), &[]),
        ("Created", stop(1, 10), &["1 ok"]),
        ("Starting", stop(1, 10), &["wake 110"]),
        ("Starting", stop(1, 0), &["AbortLaunch", "wake 105"]),
        ("Running", stop(1, 10), &["StopSignal(Shim)", "wake 110"]),
        ("Running", stop(1, 0), &["Kill", "wake 105"]),
        ("Unknown", stop(1, 10), &["Watch"]),
        ("Unknown", stop(1, 0), &["Watch"]),
        ("Exited", stop(1, 10), &["1 ok"]),
        ("Removing", stop(1, 10), &["1 ok"]),
    ]);
    assert_eq!(Bench::empty().on(stop(1, 10)), ["1 ok"], "an unknown id");
}

#[test]
fn remove_in_every_state() {
    let remove = || ContainerEvent::Remove(WaiterId(1));
    check_cells(&[
        ("Creating", remove(), &[]),
        ("Created", remove(), &["Cleanup"]),
        ("Starting", remove(), &["AbortLaunch", "wake 105"]),
        ("Running", remove(), &["Kill", "wake 105"]),
        ("Unknown", remove(), &["Watch"]),
        ("Exited", remove(), &["Cleanup"]),
        ("Removing", remove(), &[]),
    ]);
    assert_eq!(Bench::empty().on(remove()), ["1 ok"], "an unknown id");
    let mut bench = Bench::container("Removing");
    bench.on(remove());
    assert_eq!(bench.on(ContainerEvent::Cleaned(Ok(()))), ["Deleted!", "1 ok", "93 ok"]);
    assert!(bench.machines.container(&cid()).is_none());
}

#[test]
fn exits_in_every_state() {
    let ended: &[&str] = &["KillCgroup", "record 3 Error", "Stopped!"];
    check_cells(&[
        ("Creating", exited(3), &[]),
        ("Created", exited(3), &[]),
        (
            "Starting",
            exited(3),
            &[
                "92 the launcher ended before the program was executed",
                "KillCgroup",
                "record 128 StartError",
                "Stopped!",
            ],
        ),
        ("Running", exited(3), ended),
        ("Unknown", exited(3), ended),
        ("Exited", exited(4), &[]),
        ("Removing", exited(3), &[]),
    ]);
    let mut bench = Bench::container("Exited");
    bench.on(exited(4));
    assert_eq!(bench.machines.container(&cid()).and_then(Container::exit).map(|r| r.code), Some(3));
}

#[test]
fn a_lost_shim_in_every_state() {
    let states = [
        ("Creating", None),
        ("Created", Some(ShownContainer::Created)),
        ("Starting", Some(ShownContainer::Created)),
        ("Running", Some(ShownContainer::Running)),
        ("Exited", Some(ShownContainer::Exited)),
        ("Removing", Some(ShownContainer::Created)),
    ];
    for (state, shown) in states {
        let mut bench = Bench::container(state);
        assert_eq!(bench.sandbox(SandboxEvent::ShimLost), ["Adopt"], "{state}");
        assert_eq!(bench.shown(), shown, "{state}");
    }
}

#[test]
fn what_the_new_shim_finds_decides() {
    let found = |found: Found| SandboxEvent::Adopted(Ok(vec![(cid(), found)]));
    let record = || Found::Exited(ExitRecord::of_process(0, true, 7));
    let started = ["record Running", "Started!", "92 ok"];
    let ended = ["KillCgroup", "record 0 OOMKilled", "Stopped!"];
    let cells: [(&str, Found, Vec<&str>); 6] = [
        ("Running", alive(false), vec![]),
        ("Running", record(), ended.to_vec()),
        ("Running", Found::Gone, vec!["KillCgroup", "record 255 Unknown", "Stopped!"]),
        ("Starting", alive(false), started.to_vec()),
        ("Starting", record(), [started.as_slice(), ended.as_slice()].concat()),
        (
            "Starting",
            Found::Gone,
            vec![
                "92 the shim was lost before the program was executed",
                "KillCgroup",
                "record 128 StartError",
                "Stopped!",
            ],
        ),
    ];
    for (state, what, expected) in cells {
        let mut bench = Bench::container(state);
        bench.sandbox(SandboxEvent::ShimLost);
        assert_eq!(bench.sandbox(found(what.clone())), expected, "{what:?} in {state}");
    }
}

#[test]
fn a_start_that_ended_with_its_agent_before_the_launch_can_be_repeated() {
    let not_launched = || SandboxEvent::Adopted(Ok(vec![(cid(), Found::NotLaunched)]));
    let restarted = || {
        let mut bench = Bench::empty();
        let mut out = vec![];
        let sandbox = (sid(), sandbox_key(), SandboxRecordState::Ready(planned()));
        let container = (cid(), key(), ContainerRecordState::Starting);
        bench.machines = Machines::restore(vec![sandbox], vec![container], NOW, &mut out);
        bench
    };
    let mut bench = restarted();
    assert_eq!(bench.sandbox(not_launched()), ["record Created"]);
    assert_eq!(bench.shown(), Some(ShownContainer::Created));
    assert_eq!(bench.on(ContainerEvent::Start(WaiterId(1))), ["record Starting", "Launch"]);
    // One that is being removed is not started any more.
    let mut bench = restarted();
    bench.on(ContainerEvent::Remove(WaiterId(2)));
    assert_eq!(bench.sandbox(not_launched()), ["KillCgroup", "record 128 StartError", "Stopped!", "Cleanup"]);
}

#[test]
fn results_of_create_and_launch() {
    let failed = |message: &str| Err(Failure::new(message));
    check_cells(&[
        ("Creating", created(), &["Created!", "91 ok"]),
        ("Creating", ContainerEvent::CreateDone(failed("disk full")), &["91 disk full"]),
        ("Starting", ContainerEvent::Launched, &["record Running", "Started!", "92 ok"]),
        (
            "Starting",
            ContainerEvent::LaunchFailed(Failure::new("exec /x: no such file or directory")),
            &["92 exec /x: no such file or directory", "KillCgroup", "record 128 StartError", "Stopped!"],
        ),
    ]);
    let mut bench = Bench::container("Creating");
    bench.on(ContainerEvent::CreateDone(failed("disk full")));
    bench.feed(MachineEvent::Create { id: ContainerId("d".into()), waiter: WaiterId(2), key: key() });
    assert_eq!(bench.last, ["Create"], "a failed create releases its name");
}

#[test]
fn requests_during_a_create_wait_for_its_end() {
    let mut bench = Bench::container("Creating");
    bench.on(stop(1, 10));
    bench.on(ContainerEvent::Remove(WaiterId(2)));
    assert_eq!(bench.on(created()), ["Created!", "91 ok", "1 ok", "Cleanup"]);
    assert_eq!(bench.on(ContainerEvent::Cleaned(Ok(()))), ["Deleted!", "2 ok"]);
}

#[test]
fn a_stop_during_a_start_is_applied_when_the_container_runs() {
    let mut bench = Bench::container("Starting");
    bench.on(stop(1, 10));
    let started = ["record Running", "Started!", "92 ok", "StopSignal(Shim)", "wake 110"];
    assert_eq!(bench.on(ContainerEvent::Launched), started);
    let mut bench = Bench::container("Starting");
    bench.on(stop(1, 10));
    bench.pass(10);
    assert_eq!(bench.on(ContainerEvent::Wake), ["AbortLaunch", "wake 115"]);
    let too_late = ["record Running", "Started!", "92 ok", "Kill", "wake 115"];
    assert_eq!(bench.on(ContainerEvent::Launched), too_late);
}

#[test]
fn a_shorter_timeout_shortens_and_a_longer_one_extends_nothing() {
    let mut bench = Bench::container("Running");
    bench.on(stop(1, 30));
    assert_eq!(bench.on(stop(2, 60)), ["StopSignal(Shim)", "wake 130"]);
    assert_eq!(bench.on(stop(3, 5)), ["StopSignal(Shim)", "wake 105"]);
    bench.pass(5);
    assert_eq!(bench.on(ContainerEvent::Wake), ["Kill", "wake 110"]);
    assert_eq!(bench.on(exited(137)), ["KillCgroup", "record 137 Error", "Stopped!", "1 ok", "2 ok", "3 ok"]);
}

#[test]
fn a_caller_that_goes_away_never_causes_a_kill() {
    let mut bench = Bench::container("Running");
    bench.on(stop(1, 5));
    bench.on(stop(2, 60));
    assert!(bench.on(ContainerEvent::Abandon(WaiterId(1))).is_empty());
    bench.pass(5);
    assert_eq!(bench.on(ContainerEvent::Wake), ["wake 160"]);
    assert!(bench.on(ContainerEvent::Abandon(WaiterId(2))).is_empty());
    bench.pass(60);
    assert!(bench.on(ContainerEvent::Wake).is_empty());
}

#[test]
fn a_kill_is_repeated_every_five_seconds_while_the_process_lives() {
    let mut bench = Bench::container("Running");
    bench.on(stop(1, 0));
    assert!(bench.machines.container(&cid()).is_some_and(Container::refuses_exec));
    bench.pass(4);
    assert_eq!(bench.on(ContainerEvent::Wake), ["wake 105"]);
    bench.pass(1);
    assert_eq!(bench.on(ContainerEvent::Wake), ["Kill", "wake 110"]);
    assert_eq!(bench.on(stop(2, 0)), ["wake 110"]);
}

#[test]
fn an_unknown_container_is_found_before_it_is_stopped() {
    let mut bench = Bench::container("Unknown");
    bench.on(stop(1, 10));
    assert_eq!(bench.on(ContainerEvent::Watched(alive(false))), ["StopSignal(Pidfd)", "wake 110"]);
    assert_eq!(bench.on(stop(2, 20)), ["wake 110"], "the signal is sent once");
    bench.pass(10);
    assert_eq!(bench.on(ContainerEvent::Wake), ["Kill", "wake 115"]);

    let mut bench = Bench::container("Unknown");
    bench.on(stop(1, 10));
    assert_eq!(bench.on(ContainerEvent::Watched(alive(true))), ["wake 110"], "the lost shim has sent it");

    let mut bench = Bench::container("Unknown");
    bench.on(stop(1, 10));
    let gone = ["KillCgroup", "record 255 Unknown", "Stopped!", "1 ok"];
    assert_eq!(bench.on(ContainerEvent::Watched(Found::Gone)), gone);
}

#[test]
fn a_failed_cleanup_is_answered_and_can_be_repeated() {
    let mut bench = Bench::container("Exited");
    bench.on(ContainerEvent::Remove(WaiterId(1)));
    assert_eq!(bench.on(ContainerEvent::Cleaned(Err(failure()))), ["record 3 Error", "1 boom"]);
    assert_eq!(bench.shown(), Some(ShownContainer::Exited));
    assert_eq!(bench.on(ContainerEvent::Remove(WaiterId(2))), ["Cleanup"]);
    let mut bench = Bench::container("Removing");
    assert_eq!(bench.on(ContainerEvent::Cleaned(Err(failure()))), ["record 128 StartError", "93 boom"]);
}

#[test]
fn a_container_that_is_removed_before_its_start_has_not_exited() {
    let mut bench = Bench::container("Created");
    bench.on(ContainerEvent::Remove(WaiterId(1)));
    assert_eq!(bench.shown(), Some(ShownContainer::Created), "an exit without a record would have the code 0");
    let mut bench = Bench::container("Exited");
    bench.on(ContainerEvent::Remove(WaiterId(1)));
    assert_eq!(bench.shown(), Some(ShownContainer::Exited));
}

#[test]
fn abandoned_runs_creates_starts_and_removals_go_on() {
    let mut bench = Bench::container("Creating");
    bench.on(ContainerEvent::Abandon(WaiterId(91)));
    assert_eq!(bench.on(created()), ["Created!"]);
    bench.on(start());
    bench.on(ContainerEvent::Abandon(WaiterId(92)));
    assert_eq!(bench.on(ContainerEvent::Launched), ["record Running", "Started!"]);
    bench.on(ContainerEvent::Remove(WaiterId(1)));
    bench.on(ContainerEvent::Abandon(WaiterId(1)));
    assert_eq!(bench.on(exited(137)), ["KillCgroup", "record 137 Error", "Stopped!", "Cleanup"]);
    assert_eq!(bench.on(ContainerEvent::Cleaned(Ok(()))), ["Deleted!"]);
}

#[test]
fn a_taken_name_names_its_owner() {
    let mut bench = Bench::container("Created");
    bench.feed(MachineEvent::Create { id: ContainerId("d".into()), waiter: WaiterId(1), key: key() });
    assert_eq!(bench.last, ["1 name \"web_s_0\" is reserved for \"c\""]);
    bench.feed(MachineEvent::Run {
        id: SandboxId("t".into()),
        waiter: WaiterId(2),
        key: sandbox_key(),
        planned: planned(),
    });
    assert_eq!(bench.last, ["2 name \"p_d_u_0\" is reserved for \"s\""]);
    bench.on(ContainerEvent::Remove(WaiterId(3)));
    bench.on(ContainerEvent::Cleaned(Ok(())));
    bench.feed(MachineEvent::Create { id: ContainerId("d".into()), waiter: WaiterId(4), key: key() });
    assert_eq!(bench.last, ["Create"]);
}
