//! Status tables, and rules that the tables do not cover.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodCondition, PodReadinessGate};

use super::*;
use crate::actions::tests::{Case, ago, now};

const TABLES: &[(&str, &str)] = &[
    ("phases", include_str!("../../testdata/status/phases.txt")),
    ("containers", include_str!("../../testdata/status/containers.txt")),
    ("ends", include_str!("../../testdata/status/ends.txt")),
];

fn input(case: &Case) -> StatusInput<'_> {
    StatusInput {
        pod: &case.pod,
        seen: &case.seen,
        record: &case.record,
        waiting: &case.waiting,
        hold: case.hold.as_ref(),
        trouble: None,
        host_ips: &[],
        runtime: "containerd",
        now: now(),
        unsure: false,
        is_static: false,
    }
}

fn status(text: &str) -> PodStatus {
    pod_status(&input(&Case::parse(text)))
}

#[test]
fn every_case_gives_its_status() {
    let (mut cases, mut wrong) = (0, vec![]);
    for (file, text) in TABLES {
        for block in text.split("\n\n").filter(|block| block.contains("----")) {
            cases += 1;
            let (given, expected) = block.split_once("----").expect("checked by the filter");
            let expected: Vec<&str> = expected.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
            let computed = lines(&status(given));
            // A case may leave out subjects.
            let computed: Vec<&String> =
                computed.iter().filter(|l| expected.iter().any(|e| subject(e) == subject(l))).collect();
            if computed != expected {
                let computed = computed.iter().map(|l| l.as_str()).collect::<Vec<_>>().join("\n");
                wrong.push(format!("{file}:\n{given}---- expected\n{}\n---- got\n{computed}\n", expected.join("\n")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cases} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(cases >= 30, "only {cases} cases were read");
}

fn subject(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

/// A status in the syntax of the tables.
fn lines(status: &PodStatus) -> Vec<String> {
    let text = |t: &Option<String>| t.clone().map_or(String::new(), |t| format!(" {t}"));
    let mut out = vec![format!("phase{}{}", text(&status.phase), text(&status.reason))];
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    for c in lists.into_iter().flatten().flatten() {
        let last = c.last_state.as_ref().map_or(String::new(), |s| format!(" last={}", state(s)));
        let restarts = if c.restart_count == 0 { String::new() } else { format!(" restarts={}", c.restart_count) };
        let started = if c.started == Some(true) { " started" } else { "" };
        let ready = if c.ready { " ready" } else { "" };
        out.push(format!(
            "{} {}{last}{restarts}{started}{ready}",
            c.name,
            c.state.as_ref().map_or("none".into(), state)
        ));
    }
    for c in status.conditions.iter().flatten() {
        let sign = if c.status == "True" { '+' } else { '-' };
        out.push(format!("{} {sign}{}", c.type_, text(&c.reason)));
    }
    out
}

fn state(state: &ContainerState) -> String {
    match (&state.waiting, &state.running, &state.terminated) {
        (Some(waiting), _, _) => waiting.reason.clone().unwrap_or_default(),
        (_, Some(_), _) => "running".into(),
        (_, _, Some(t)) => format!("exited({}){}", t.exit_code, t.reason.as_deref().unwrap_or_default()),
        _ => "none".into(),
    }
}

fn find<'a>(status: &'a PodStatus, type_: &str) -> &'a PodCondition {
    status.conditions.iter().flatten().find(|c| c.type_ == type_).expect("a condition")
}

fn app(status: &PodStatus) -> &ContainerStatus {
    &status.container_statuses.as_ref().expect("app containers")[0]
}

const UP: &str = "pod restart=Always containers=web:readiness\nseen sandbox=ready web=running\nmemory web ready=web#0:";

#[test]
fn messages_name_the_containers_as_the_kubelet_does() {
    let two = status("pod restart=Always containers=web,log\nseen sandbox=ready");
    assert_eq!(find(&two, "Ready").message.as_deref(), Some("containers with unready status: [web log]"));
    let init = status("pod restart=Always init=a,b containers=web\nseen sandbox=ready a=exited(0)\ncursor s1 1");
    assert_eq!(find(&init, "Initialized").message.as_deref(), Some("containers with incomplete status: [b]"));
}

#[test]
fn a_transition_time_changes_with_the_status_and_not_with_the_reason() {
    let mut case = Case::parse(&format!("{UP}no"));
    let mut first = pod_status(&StatusInput { now: ago(100), ..input(&case) });
    find_mut(&mut first, "Ready").reason = Some("Other".into());
    case.record.status = Some(first);
    let same = pod_status(&input(&case));
    assert_eq!(find(&same, "Ready").last_transition_time, Some(second(ago(100))));
    assert_eq!(find(&same, "Ready").reason.as_deref(), Some("ContainersNotReady"));
    case.record.containers.get_mut("web").expect("remembered").ready = Some(("web#0".into(), true));
    let ready = pod_status(&input(&case));
    assert_eq!(find(&ready, "Ready").last_transition_time, Some(second(now())));
    assert_eq!(find(&ready, "Initialized").last_transition_time, Some(second(ago(100))));
}

fn find_mut<'a>(status: &'a mut PodStatus, type_: &str) -> &'a mut PodCondition {
    status.conditions.iter_mut().flatten().find(|c| c.type_ == type_).expect("a condition")
}

#[test]
fn the_start_time_is_set_once_in_whole_seconds() {
    let mut case = Case::parse(&format!("{UP}yes"));
    let odd = ago(7).checked_add(jiff::SignedDuration::from_millis(700)).expect("in range");
    let first = pod_status(&StatusInput { now: odd, ..input(&case) });
    assert_eq!(first.start_time, Some(Time(ago(7))));
    case.record.status = Some(first.clone());
    let later = pod_status(&input(&case));
    assert_eq!(later.start_time, first.start_time);
    let moved = PodStatus { start_time: Some(second(now())), ..later };
    assert_eq!(check_transition(&first, moved, &case.pod, |_| false).expect("legal").start_time, first.start_time);
}

#[test]
fn a_readiness_gate_holds_ready_back_until_its_condition_is_true() {
    let mut case = Case::parse(&format!("{UP}yes"));
    let gate = PodReadinessGate { condition_type: "example.com/lb".into() };
    case.pod.spec.as_mut().expect("a spec").readiness_gates = Some(vec![gate]);
    let closed = pod_status(&input(&case));
    assert_eq!(find(&closed, "ContainersReady").status, "True");
    assert_eq!(find(&closed, "Ready").reason.as_deref(), Some("ReadinessGatesNotReady"));
    let message = "corresponding condition of pod readiness gate \"example.com/lb\" does not exist.";
    assert_eq!(find(&closed, "Ready").message.as_deref(), Some(message));
    let theirs = PodCondition { type_: "example.com/lb".into(), status: "True".into(), ..PodCondition::default() };
    case.pod.status = Some(PodStatus { conditions: Some(vec![theirs.clone()]), ..PodStatus::default() });
    let open = pod_status(&input(&case));
    assert_eq!(find(&open, "Ready").status, "True");
    assert_eq!(find(&open, "example.com/lb"), &theirs, "a condition that isn't ours is kept");
}

#[test]
fn addresses_come_from_the_sandbox_and_are_kept_when_it_is_gone() {
    let mut case = Case::parse(&format!("{UP}yes"));
    let hosts = ["192.0.2.1".to_owned()];
    let up = pod_status(&StatusInput { host_ips: &hosts, ..input(&case) });
    assert_eq!((up.pod_ip.as_deref(), up.host_ip.as_deref()), (Some("10.0.0.2"), Some("192.0.2.1")));
    case.record.status = Some(up);
    case.seen = PodSeen::default();
    assert_eq!(pod_status(&input(&case)).pod_ip.as_deref(), Some("10.0.0.2"));
    case.pod.spec.as_mut().expect("a spec").host_network = Some(true);
    let host = pod_status(&StatusInput { host_ips: &hosts, ..input(&case) });
    assert_eq!(host.pod_ip.as_deref(), Some("192.0.2.1"));
}

#[test]
fn the_status_shows_the_resources_of_the_pod() {
    let mut case = Case::parse("pod restart=Always containers=web,log\nseen sandbox=ready web=running");
    let given = |list: &[(&str, &str)]| list.iter().map(|(n, q)| ((*n).to_owned(), Quantity((*q).into()))).collect();
    for container in &mut case.pod.spec.as_mut().expect("a spec").containers {
        let limits = (container.name == "web").then(|| given(&[("memory", "64Mi")]));
        let requests = Some(given(&[("cpu", "100m"), ("memory", "32Mi")]));
        container.resources = Some(ResourceRequirements { limits, requests, claims: None });
    }
    let status = pod_status(&input(&case));
    assert_eq!(status.allocated_resources, Some(given(&[("cpu", "200m"), ("memory", "64Mi")])));
    let resources = status.resources.expect("resources");
    assert_eq!(
        (resources.requests, resources.limits),
        (status.allocated_resources, Some(given(&[("memory", "64Mi")])))
    );
    let bare = pod_status(&input(&Case::parse(&format!("{UP}yes"))));
    assert_eq!((bare.resources, bare.allocated_resources), (None, None));
}

#[test]
fn a_terminal_phase_is_withheld_until_nothing_runs() {
    let mut case = Case::parse(&format!("{UP}yes"));
    let running = pod_status(&input(&case));
    case.record.status = Some(running);
    let evicted =
        Case::parse("pod restart=Always containers=web\nseen sandbox=none\nending evicted Evicted").record.life;
    case.record.life = evicted;
    let held = pod_status(&input(&case));
    assert_eq!((held.phase.as_deref(), held.reason.as_deref()), (Some("Running"), None));
    assert_eq!(find(&held, "Ready").status, "False");
    assert!(held.conditions.iter().flatten().all(|c| c.type_ != "DisruptionTarget"));
    case.seen = PodSeen::default();
    let computed = pod_status(&input(&case));
    assert_eq!((computed.phase.as_deref(), computed.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    assert_eq!(find(&computed, "DisruptionTarget").reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(find(&computed, "Ready").reason.as_deref(), Some("PodFailed"));
}

#[test]
fn a_terminal_phase_never_changes() {
    let mut case = Case::parse(&format!("{UP}yes"));
    let old = PodStatus { phase: Some("Succeeded".into()), reason: Some("Because".into()), ..PodStatus::default() };
    case.record.status = Some(old.clone());
    let next = pod_status(&input(&case));
    assert_eq!((next.phase.as_deref(), next.reason.as_deref()), (Some("Succeeded"), Some("Because")));
    let revised = PodStatus { phase: Some("Failed".into()), ..next };
    let refused = check_transition(&old, revised, &case.pod, |_| false);
    assert_eq!(refused, Err(IllegalTransition::Phase { from: "Succeeded".into(), to: "Failed".into() }));
}

#[test]
fn a_final_termination_is_never_reverted() {
    let check = |policy: &str, before: &str, after: &str, replaced: bool| {
        let pod = format!("pod restart={policy} containers=web");
        let case = Case::parse(&pod);
        let status = |seen: &str| status(&format!("{pod}\nseen sandbox=ready web={seen}"));
        check_transition(&PodStatus { phase: None, ..status(before) }, status(after), &case.pod, |_| replaced)
            .map(|_| ())
    };
    let refused = Err(IllegalTransition::Revived { name: "web".into() });
    assert_eq!(check("Never", "exited(1)", "running", false), refused);
    assert_eq!(check("Never", "exited(0)", "created", false), refused);
    assert_eq!(check("OnFailure", "exited(0)", "running#1", false), refused);
    assert_eq!(check("OnFailure", "exited(1)", "running#1", false), Ok(()));
    assert_eq!(check("Always", "exited(0)", "running#1", false), Ok(()));
    assert_eq!(check("Never", "running", "exited(1)", false), Ok(()));
    assert_eq!(check("Never", "exited(137)", "running#1", true), Ok(()));
}

#[test]
fn an_interrupted_start_is_a_termination_only_in_a_terminating_pod() {
    let pod = "pod restart=Never containers=web";
    let mut case = Case::parse(&format!("{pod}\nseen sandbox=ready web=exited(128)"));
    case.seen.containers[0].started_at = None;
    let id = case.seen.containers[0].id.clone();
    case.record.containers.entry("web".into()).or_default().starting = Some(id);
    let shown = |case: &Case| state(app(&pod_status(&input(case))).state.as_ref().expect("a state"));
    assert_eq!(shown(&case), "ContainerCreating", "it may be replaced");
    let ending = Case::parse(&format!("{pod}\nending deleted")).record.life;
    case.record.life = ending;
    assert_eq!(shown(&case), "exited(128)");
    case.record.status = Some(pod_status(&input(&case)));
    for late in ["seen sandbox=ready web=created#1 web=exited(128)", "seen sandbox=dead"] {
        case.seen = Case::parse(&format!("{pod}\n{late}")).seen;
        assert_eq!(shown(&case), "exited(128)", "{late}");
    }
}

#[test]
fn init_may_run_again_in_a_new_sandbox_but_not_in_a_pod_that_never_restarts() {
    let check = |policy: &str| {
        let pod = format!("pod restart={policy} init=a containers=web");
        let before = status(&format!("{pod}\nseen sandbox=ready a=exited(0)\ncursor s1 1"));
        let after = status(&format!("{pod}\nseen sandbox=s2:ready,s1:dead a=running#1@s2 a=exited(0)@s1\ncursor s2 0"));
        check_transition(&before, after, &Case::parse(&pod).pod, |_| false).is_ok()
    };
    assert!(check("OnFailure"));
    assert!(!check("Never"));
}

#[test]
fn the_active_deadline_counts_from_the_start_time() {
    let mut case = Case::parse(&format!("{UP}yes"));
    let started = PodStatus { start_time: Some(second(ago(10))), ..PodStatus::default() };
    assert!(!active_deadline_exceeded(&case.pod, &started, now()));
    case.pod.spec.as_mut().expect("a spec").active_deadline_seconds = Some(10);
    assert!(active_deadline_exceeded(&case.pod, &started, now()));
    assert!(!active_deadline_exceeded(&case.pod, &started, ago(1)));
    assert!(!active_deadline_exceeded(&case.pod, &PodStatus::default(), now()), "no start time, no deadline");
}

#[test]
fn ids_times_and_messages_have_the_format_of_the_api() {
    let mut case = Case::parse("pod restart=Never containers=web,log\nseen sandbox=ready web=exited(3)");
    let odd = ago(1).checked_add(jiff::SignedDuration::from_millis(300)).expect("in range");
    case.seen.containers[0].finished_at = Some(odd);
    case.seen.containers[0].message = "ä".repeat(MANY);
    case.seen.containers[0].user = Some((1000, 1000, vec![5]));
    let status = pod_status(&input(&case));
    let web =
        status.container_statuses.as_ref().expect("app containers").iter().find(|c| c.name == "web").expect("web");
    assert_eq!(web.container_id.as_deref(), Some("containerd://web#0"));
    let end = web.state.as_ref().and_then(|s| s.terminated.as_ref()).expect("an end");
    assert_eq!(end.finished_at, Some(Time(ago(1))));
    let message = end.message.as_deref().expect("a message");
    assert!(message.len() <= 6 * 1024 && message.len() > 6 * 1024 - 3, "{}", message.len());
    let user = web.user.as_ref().and_then(|u| u.linux.as_ref()).expect("a user");
    assert_eq!((user.uid, user.supplemental_groups.as_deref()), (1000, Some(&[5][..])));
}

/// More than the 6 KiB that two containers get each.
const MANY: usize = 10_000;

#[test]
fn an_unknown_container_keeps_its_last_status() {
    let mut case = Case::parse("pod restart=Always containers=web\nseen sandbox=ready web=running");
    case.record.status = Some(pod_status(&input(&case)));
    case.seen.containers[0].state = crate::model::RunState::Unknown;
    let status = pod_status(&input(&case));
    assert!(app(&status).state.as_ref().is_some_and(|s| s.running.is_some()));
    assert!(!app(&status).ready);
}

#[test]
fn a_finished_static_pod_does_not_fail() {
    let case = Case::parse("pod restart=Always containers=web\nseen sandbox=none\nending deleted\nold Running");
    let mut record = case.record.clone();
    record.life.terminated();
    record.life.finished();
    let computed =
        |is_static| pod_status(&StatusInput { record: &record, is_static, unsure: true, ..input(&case) }).phase;
    assert_eq!(computed(true).as_deref(), Some("Running"));
    assert_eq!(computed(false).as_deref(), Some("Failed"));
}
