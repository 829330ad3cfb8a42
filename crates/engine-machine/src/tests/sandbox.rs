//! The table of the sandbox.

use super::*;

fn done(step: SandboxStep) -> SandboxEvent {
    SandboxEvent::StepDone(step, Ok(()))
}

fn failed(step: SandboxStep) -> SandboxEvent {
    SandboxEvent::StepDone(step, Err(failure()))
}

fn run(planned: SandboxResources) -> Bench {
    let mut bench = Bench::empty();
    bench.feed(MachineEvent::Run { id: sid(), waiter: WaiterId(90), key: sandbox_key(), planned });
    bench
}

#[test]
fn run_records_first_and_then_takes_its_steps_in_order() {
    let mut bench = run(planned());
    assert_eq!(bench.last, ["WriteRecord"]);
    assert_eq!(bench.sandbox(done(SandboxStep::WriteRecord)), ["ForkShim"]);
    assert_eq!(bench.sandbox(done(SandboxStep::ForkShim)), ["SetUpNamespaces"]);
    assert_eq!(bench.sandbox(done(SandboxStep::SetUpNamespaces)), ["Attach"]);
    assert!(!bench.machines.sandbox(&sid()).is_some_and(Sandbox::is_shown));
    let ready = ["sandbox Ready", "sandbox Created!", "sandbox Started!", "90 ok"];
    assert_eq!(bench.sandbox(done(SandboxStep::Attach)), ready);
    assert!(bench.machines.sandbox(&sid()).is_some_and(Sandbox::is_ready));
}

#[test]
fn a_failed_step_undoes_what_may_exist_and_releases_the_name() {
    let undo: [(SandboxStep, &[SandboxStep]); 4] = [
        (SandboxStep::WriteRecord, &[]),
        (SandboxStep::ForkShim, &[SandboxStep::ShutDownShim]),
        (SandboxStep::SetUpNamespaces, &[SandboxStep::ReleaseNamespaces, SandboxStep::ShutDownShim]),
        (
            SandboxStep::Attach,
            &[SandboxStep::ReleaseNetwork, SandboxStep::ReleaseNamespaces, SandboxStep::ShutDownShim],
        ),
    ];
    let order = [SandboxStep::WriteRecord, SandboxStep::ForkShim, SandboxStep::SetUpNamespaces, SandboxStep::Attach];
    for (broken, steps) in undo {
        let mut bench = run(planned());
        order.iter().take_while(|step| **step != broken).for_each(|step| {
            bench.sandbox(done(*step));
        });
        bench.sandbox(failed(broken));
        for step in steps {
            assert_eq!(bench.last, [format!("{step:?}")], "{broken:?} failed");
            bench.sandbox(done(*step));
        }
        assert_eq!(bench.last, ["RemoveFiles"], "{broken:?} failed");
        assert_eq!(bench.sandbox(done(SandboxStep::RemoveFiles)), ["90 boom"]);
        assert_eq!(bench.machines, Machines::default(), "{broken:?} failed");
    }
}

#[test]
fn a_run_that_can_not_be_undone_is_listed_and_can_be_stopped_and_removed() {
    let mut bench = run(planned());
    bench.sandbox(done(SandboxStep::WriteRecord));
    bench.sandbox(failed(SandboxStep::ForkShim));
    assert_eq!(bench.sandbox(failed(SandboxStep::ShutDownShim)), ["sandbox NotReady", "90 boom"]);
    assert!(bench.machines.sandbox(&sid()).is_some_and(|s| s.is_shown() && !s.is_ready()));
    assert_eq!(bench.sandbox(SandboxEvent::Remove(WaiterId(1))), ["sandbox NotReady", "ShutDownShim"]);
    let stopped = ["sandbox NotReady", "sandbox Stopped!", "RemoveFiles"];
    assert_eq!(bench.sandbox(done(SandboxStep::ShutDownShim)), stopped);
    assert_eq!(bench.sandbox(done(SandboxStep::RemoveFiles)), ["sandbox Deleted!", "1 ok"]);
}

#[test]
fn a_stop_during_run_waits_for_its_end() {
    let mut bench = run(planned());
    bench.sandbox(done(SandboxStep::WriteRecord));
    assert!(bench.sandbox(SandboxEvent::Stop(WaiterId(1))).is_empty());
    bench.sandbox(done(SandboxStep::ForkShim));
    bench.sandbox(done(SandboxStep::SetUpNamespaces));
    let ready =
        ["sandbox Ready", "sandbox Created!", "sandbox Started!", "90 ok", "sandbox NotReady", "ReleaseNetwork"];
    assert_eq!(bench.sandbox(done(SandboxStep::Attach)), ready);
}

#[test]
fn a_stop_ends_containers_then_network_namespaces_and_shim() {
    let mut bench = Bench::container("Running");
    assert_eq!(bench.sandbox(SandboxEvent::Stop(WaiterId(1))), ["sandbox NotReady", "Kill", "wake 105"]);
    let exit = ["KillCgroup", "record 137 Error", "Stopped!", "ReleaseNetwork"];
    assert_eq!(bench.on(exited(137)), exit);
    assert_eq!(bench.sandbox(done(SandboxStep::ReleaseNetwork)), ["ReleaseNamespaces"]);
    assert_eq!(bench.sandbox(done(SandboxStep::ReleaseNamespaces)), ["ShutDownShim"]);
    assert!(bench.sandbox(SandboxEvent::Stop(WaiterId(2))).is_empty(), "a second stop joins");
    let stopped = ["sandbox NotReady", "sandbox Stopped!", "1 ok", "2 ok"];
    assert_eq!(bench.sandbox(done(SandboxStep::ShutDownShim)), stopped);
    assert_eq!(bench.sandbox(SandboxEvent::Stop(WaiterId(3))), ["3 ok"]);
    assert_eq!(bench.sandbox(SandboxEvent::Remove(WaiterId(4))), ["Cleanup"]);
    assert_eq!(bench.on(ContainerEvent::Cleaned(Ok(()))), ["Deleted!", "RemoveFiles"]);
    assert_eq!(bench.sandbox(done(SandboxStep::RemoveFiles)), ["sandbox Deleted!", "4 ok"]);
    assert_eq!(bench.machines, Machines::default());
}

#[test]
fn a_stopping_sandbox_refuses_creates_and_starts_and_aborts_launches() {
    let mut bench = Bench::container("Starting");
    let mut created = Bench::container("Created");
    created.sandbox(SandboxEvent::Stop(WaiterId(1)));
    assert_eq!(created.on(ContainerEvent::Start(WaiterId(2))), ["2 sandbox \"s\" is not ready"]);
    assert_eq!(bench.sandbox(SandboxEvent::Stop(WaiterId(1))), ["sandbox NotReady", "AbortLaunch", "wake 105"]);
    let key = ContainerKey { sandbox: sid(), name: "db".into(), attempt: 0 };
    bench.feed(MachineEvent::Create { id: ContainerId("d".into()), waiter: WaiterId(3), key });
    assert_eq!(bench.last, ["3 sandbox \"s\" is not ready"]);
}

#[test]
fn a_create_in_flight_ends_as_created_in_a_stopped_sandbox() {
    let mut bench = Bench::container("Creating");
    assert_eq!(bench.sandbox(SandboxEvent::Stop(WaiterId(1))), ["sandbox NotReady", "ReleaseNetwork"]);
    assert_eq!(bench.on(created()), ["Created!", "91 ok"]);
    assert_eq!(bench.shown(), Some(ShownContainer::Created));
}

#[test]
fn a_failed_stop_is_answered_and_the_next_one_does_the_rest() {
    let mut bench = Bench::ready();
    bench.sandbox(SandboxEvent::Stop(WaiterId(1)));
    bench.sandbox(done(SandboxStep::ReleaseNetwork));
    assert_eq!(bench.sandbox(failed(SandboxStep::ReleaseNamespaces)), ["sandbox NotReady", "1 boom"]);
    assert_eq!(bench.sandbox(SandboxEvent::Stop(WaiterId(2))), ["sandbox NotReady", "ReleaseNamespaces"]);
}

#[test]
fn a_container_that_can_not_be_removed_fails_the_removal_of_its_sandbox() {
    let mut bench = Bench::container("Exited");
    bench.sandbox(SandboxEvent::Remove(WaiterId(1)));
    for step in [SandboxStep::ReleaseNetwork, SandboxStep::ReleaseNamespaces, SandboxStep::ShutDownShim] {
        bench.sandbox(done(step));
    }
    let answer = ["sandbox NotReady", "1 boom", "record 3 Error"];
    assert_eq!(bench.on(ContainerEvent::Cleaned(Err(failure()))), answer);
    assert_eq!(bench.sandbox(SandboxEvent::Remove(WaiterId(2))), ["Cleanup"]);
}

#[test]
fn the_third_lost_shim_within_a_minute_ends_the_sandbox_and_its_containers_can_be_stopped() {
    let mut bench = Bench::container("Running");
    for _ in 0..2 {
        assert_eq!(bench.sandbox(SandboxEvent::ShimLost), ["Adopt"]);
        bench.sandbox(SandboxEvent::Adopted(Ok(vec![(cid(), alive(false))])));
        bench.pass(20);
    }
    assert_eq!(bench.sandbox(SandboxEvent::ShimLost), ["sandbox NotReady", "sandbox Stopped!"]);
    assert_eq!(bench.shown(), Some(ShownContainer::Unknown));
    assert_eq!(bench.on(stop(1, 10)), ["Watch"]);
    let mut slow = Bench::container("Running");
    for _ in 0..5 {
        slow.pass(30);
        assert_eq!(slow.sandbox(SandboxEvent::ShimLost), ["Adopt"], "not three within a minute");
        slow.sandbox(SandboxEvent::Adopted(Ok(vec![(cid(), alive(false))])));
    }
}

/// A zygote that cannot fork for lack of memory fails within a millisecond.
#[test]
fn a_failed_adoption_is_tried_again_after_a_pause() {
    let failed = || SandboxEvent::Adopted(Err(AdoptError::Failed(failure())));
    let mut bench = Bench::container("Running");
    assert_eq!(bench.sandbox(SandboxEvent::ShimLost), ["Adopt"], "a lost shim is replaced at once");
    assert_eq!(bench.sandbox(failed()), ["Adopt after 10"]);
    bench.pass(10);
    assert!(bench.sandbox(SandboxEvent::Adopted(Ok(vec![(cid(), alive(false))]))).is_empty());
    assert!(bench.machines.sandbox(&sid()).unwrap().is_ready());
    let record = (sid(), sandbox_key(), SandboxRecordState::Ready(planned()));
    let machines = Machines::restore(vec![record], vec![], NOW, &mut vec![]);
    let mut restarted = Bench { machines, ..Bench::empty() };
    assert_eq!(restarted.sandbox(failed()), ["Adopt after 2"]);
    restarted.pass(2);
    assert_eq!(restarted.sandbox(failed()), ["Adopt after 10"]);
    restarted.pass(10);
    assert_eq!(restarted.sandbox(failed()), ["sandbox NotReady", "sandbox Stopped!"], "the third time it is given up");
}

#[test]
fn lost_namespaces_and_an_ended_pause_process_end_the_sandbox() {
    let mut bench = Bench::ready();
    bench.sandbox(SandboxEvent::ShimLost);
    let ended = ["sandbox NotReady", "sandbox Stopped!"];
    assert_eq!(bench.sandbox(SandboxEvent::Adopted(Err(AdoptError::NamespacesLost))), ended);
    let mut bench = Bench::ready();
    assert_eq!(bench.sandbox(SandboxEvent::PauseExited), ended);
    assert!(!bench.machines.sandbox(&sid()).is_some_and(Sandbox::is_ready));
}

#[test]
fn a_start_is_refused_while_the_shim_is_replaced() {
    let mut bench = Bench::container("Created");
    bench.sandbox(SandboxEvent::ShimLost);
    assert_eq!(bench.on(ContainerEvent::Start(WaiterId(1))), ["1 the shim of sandbox \"s\" is being replaced"]);
    bench.sandbox(SandboxEvent::Adopted(Ok(vec![])));
    assert_eq!(bench.on(ContainerEvent::Start(WaiterId(2))), ["record Starting", "Launch"]);
}

#[test]
fn a_stop_during_an_adoption_waits_for_what_was_found() {
    let mut bench = Bench::container("Running");
    bench.sandbox(SandboxEvent::ShimLost);
    assert_eq!(bench.sandbox(SandboxEvent::Stop(WaiterId(1))), ["sandbox NotReady"]);
    let found = SandboxEvent::Adopted(Ok(vec![(cid(), alive(false))]));
    assert_eq!(bench.sandbox(found), ["Kill", "wake 105"]);
}

#[test]
fn calls_on_an_unknown_sandbox() {
    let mut bench = Bench::empty();
    assert_eq!(bench.sandbox(SandboxEvent::Stop(WaiterId(1))), ["1 ok"]);
    assert_eq!(bench.sandbox(SandboxEvent::Remove(WaiterId(2))), ["2 ok"]);
    bench.feed(MachineEvent::Create { id: cid(), waiter: WaiterId(3), key: key() });
    assert_eq!(bench.last, ["3 sandbox \"s\" not found"]);
}

#[test]
fn restored_records_are_undone_adopted_or_left_alone() {
    let restored = |state, container: Option<ContainerRecordState>| {
        let containers = container.into_iter().map(|state| (cid(), key(), state)).collect();
        let mut out = vec![];
        let machines = Machines::restore(vec![(sid(), sandbox_key(), state)], containers, NOW, &mut out);
        (machines, out.iter().map(text).collect::<Vec<_>>())
    };
    let (machines, effects) = restored(SandboxRecordState::Creating(planned()), None);
    assert_eq!(effects, ["ReleaseNetwork"]);
    assert!(!machines.sandbox(&sid()).is_some_and(Sandbox::is_shown));
    let (machines, effects) = restored(SandboxRecordState::Ready(planned()), Some(ContainerRecordState::Running));
    assert_eq!(effects, ["Adopt"]);
    assert!(machines.sandbox(&sid()).is_some_and(Sandbox::is_ready));
    let (_, effects) = restored(SandboxRecordState::NotReady(planned()), Some(ContainerRecordState::Starting));
    assert_eq!(effects, ["Watch"], "no shim will report the launch");
}

#[test]
fn after_a_reboot_nothing_runs_and_addresses_can_be_released() {
    let left = SandboxResources { network: true, ..SandboxResources::default() };
    assert_eq!(SandboxRecordState::Ready(planned()).after_reboot(), SandboxRecordState::NotReady(left));
    assert_eq!(SandboxRecordState::Creating(planned()).after_reboot(), SandboxRecordState::Creating(left));
    let exited = ContainerRecordState::Exited(ExitRecord::of_process(3, false, 7));
    assert_eq!(exited.clone().after_reboot(9), exited, "an exit record never changes");
    assert_eq!(ContainerRecordState::Created.after_reboot(9), ContainerRecordState::Created);
    for state in [ContainerRecordState::Starting, ContainerRecordState::Running] {
        let ContainerRecordState::Exited(record) = state.after_reboot(9) else { panic!("not exited") };
        assert_eq!((record.code, record.reason, record.finished_at_ns), (255, ExitReason::Unknown, 9));
    }
    let state = SandboxRecordState::Ready(planned()).after_reboot();
    let mut bench = Bench::empty();
    bench.machines = Machines::restore(vec![(sid(), sandbox_key(), state)], vec![], NOW, &mut vec![]);
    assert_eq!(bench.sandbox(SandboxEvent::Stop(WaiterId(1))), ["sandbox NotReady", "ReleaseNetwork"]);
}
