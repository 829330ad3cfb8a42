//! The explanation of a pod in quarantine.

use super::*;

fn waits_in_quarantine(why: &str, until: Option<Timestamp>) -> Vec<Wait> {
    let wait = |container: Option<&str>, reason: &str, message: &str, until: Option<Timestamp>| Wait {
        container: container.map(Into::into),
        reason: reason.into(),
        message: message.into(),
        since: None,
        until,
    };
    // What the pod waited for before is still listed.
    vec![
        wait(None, "Quarantined", why, until),
        wait(None, "Terminating", "its manifest was removed", Some(at(50).wall)),
        wait(Some("c"), "CrashLoopBackOff", "back-off", Some(at(29).wall)),
    ]
}

/// The first line without the name of the pod, and the advice in one line.
fn cause_and_advice(pod: &Explanation) -> (String, String) {
    let text = text(pod, &[]);
    let (first, rest) = text.split_once('\n').unwrap();
    let advice: Vec<&str> = rest.lines().take_while(|line| !line.starts_with("  uid")).map(str::trim).collect();
    (first.strip_prefix("Pod default/web-node ").unwrap().to_owned(), advice.join(" "))
}

#[test]
fn a_quarantine_is_the_cause_in_every_state_of_the_pod() {
    let last = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
    let crashing = container(&json!({"waiting": {"reason": "CrashLoopBackOff"}}), false, 3, &last);
    let statuses = [json!({"phase": "Pending"}), json!({"phase": "Running", "containerStatuses": [crashing]})];
    let states = [State::Waiting, State::Syncing, State::Terminating, State::Terminated, State::Finished];
    for (state, status, runtime_up) in states.iter().flat_map(|state| {
        statuses.iter().flat_map(move |status| [true, false].map(|runtime_up| (*state, status, runtime_up)))
    }) {
        let mut pod = explanation(Some(state), status);
        pod.runtime_up = runtime_up;
        let why = "the agent died 2 times during CreateContainer of this pod";
        pod.waits = waits_in_quarantine(why, Some(at(20 + 540).wall));
        let (first, advice) = cause_and_advice(&pod);
        assert_eq!(first, format!("is in quarantine: {why}, next try in 9m"), "{state:?}, {status:#}");
        for part in ["→ Its containers keep running", "change its spec", "MemoryMax", "please report it"] {
            assert!(advice.contains(part), "no {part:?} in {advice:?}");
        }
    }
}

#[test]
fn a_quarantine_after_an_internal_error_ends_with_a_restart_of_the_agent() {
    let mut pod = explanation(Some(State::Syncing), &json!({"phase": "Running"}));
    pod.waits = waits_in_quarantine("a start without a sandbox", None);
    let (first, advice) = cause_and_advice(&pod);
    assert_eq!(first, "is in quarantine after an internal error: a start without a sandbox");
    assert!(advice.contains("tries the pod again when it is restarted"), "{advice}");
    assert!(!advice.contains("at the time shown"), "{advice}");
}
