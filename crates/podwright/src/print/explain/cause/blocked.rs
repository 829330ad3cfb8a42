//! What a pod waits for that is meant to run: the failure that stops it, else the step that is under way.

use jiff::Timestamp;
use podwright_agent::event_loop::Explanation;
use podwright_core::pod::Wait;

use super::Headline;
use crate::print::{age, seconds};

/// Characters of a message in the first line; the section of waits has all of it.
const MESSAGE_MAX: usize = 160;

/// The first failure of the waits, or else the first step that is under way, or else why the pod is not ready.
pub(super) fn blocked(explanation: &Explanation, waits: &[Wait], now: Timestamp) -> Option<Headline> {
    let sentences: Vec<(Kind, &Wait, String)> = waits
        .iter()
        .filter_map(|wait| sentence(explanation, wait, now).map(|(kind, text)| (kind, wait, text)))
        .collect();
    // The minimum that comes first.
    let (_, wait, text) = sentences.iter().min_by_key(|(kind, ..)| *kind)?;
    Some(Headline::of_wait(wait, text))
}

/// What a wait means for the pod, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Failed,
    UnderWay,
    NotReady,
}

fn sentence(explanation: &Explanation, wait: &Wait, now: Timestamp) -> Option<(Kind, String)> {
    let message = last_parts(without_details(&wait.message));
    let container = wait.container.as_ref().map(|name| name.as_str());
    let start = container.map_or("cannot start".to_owned(), |name| format!("cannot start {name}"));
    let image = container.and_then(|name| image(explanation, name)).unwrap_or_default();
    let failed = |text: String| Some((Kind::Failed, text));
    match wait.reason.as_str() {
        "ErrImagePull" | "ImagePullBackOff" => {
            failed(format!("{start}: the image {image} cannot be pulled: {}", pull_error(&wait.message)))
        }
        "ErrImageNeverPull" => {
            failed(format!("{start}: the image {image} is not on this node, and imagePullPolicy is Never"))
        }
        "InvalidImageName" => failed(format!("{start}: {image:?} is not the name of an image")),
        "FailedCreatePodSandBox" => failed(format!("{start}: its sandbox cannot be created: {message}")),
        "FailedCreatePodContainer" => failed(format!("{start}: its cgroup cannot be created: {message}")),
        "FailedSync" => failed(format!("cannot be observed: {message}")),
        // A crash has a sentence of its own.
        "CrashLoopBackOff" => None,
        "PodInitializing" => {
            // What follows says when the next containers start.
            let message = message.split(';').next().unwrap_or_default();
            let about = container.map(|name| format!("{name}: ")).unwrap_or_default();
            Some((Kind::UnderWay, format!("is starting: {about}{message}{}", lasting(wait, now))))
        }
        "Pulling" => {
            Some((Kind::UnderWay, format!("is starting: the image {image} is being pulled{}", lasting(wait, now))))
        }
        "NotReady" | "NotStarted" | "ReadinessGate" => {
            let about = container.map(|name| format!("{name}: ")).unwrap_or_default();
            Some((Kind::NotReady, format!("is running but not ready: {about}{message}")))
        }
        reason if UNDER_WAY.contains(&reason) => {
            let about = container.map(|name| format!("{name}: ")).unwrap_or_default();
            Some((Kind::UnderWay, format!("is starting: {about}{message}{}", lasting(wait, now))))
        }
        _ if message.is_empty() => None,
        _ => failed(format!("{start}: {message}")),
    }
}

/// `, for 12s`
fn lasting(wait: &Wait, now: Timestamp) -> String {
    wait.since.map(|since| format!(", for {}", age(seconds(since, now)))).unwrap_or_default()
}

/// The last part of a chain of errors, which is what the registry or the kernel reported.
fn pull_error(message: &str) -> String {
    let whole = without_details(message);
    shortened(whole.rsplit(": ").next().unwrap_or(whole))
}

/// Without the number of an error of the kernel, or the UID of the pod, at the end.
fn without_details(message: &str) -> &str {
    let whole = message.trim();
    let details = [" (os error ", " (pod: "].into_iter().find_map(|text| whole.rfind(text));
    details.filter(|_| whole.ends_with(')')).map_or(whole, |at| &whole[..at])
}

/// The end of a long chain of errors, where the cause is: runtimes and their helpers put their own steps before it.
pub(super) fn last_parts(message: &str) -> String {
    // What containerd adds to every error without a code.
    let message = message.trim().trim_end_matches(": unknown");
    if message.chars().count() <= MESSAGE_MAX {
        return message.to_owned();
    }
    let mut ends = message.match_indices(": ").map(|(at, text)| &message[at + text.len()..]);
    let fitting = ends.find(|end| end.chars().count() <= MESSAGE_MAX);
    fitting.map_or_else(|| shortened(message), |end| format!("… {end}"))
}

pub(super) fn shortened(message: &str) -> String {
    let message = message.trim();
    match message.char_indices().nth(MESSAGE_MAX) {
        Some((at, _)) => format!("{}…", message[..at].trim_end()),
        None => message.to_owned(),
    }
}

fn image<'a>(explanation: &'a Explanation, container: &str) -> Option<&'a str> {
    let spec = explanation.pod.as_ref()?.spec.as_ref()?;
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find(|found| found.name == container)?.image.as_deref()
}

/// Reasons of steps that take their time.
const UNDER_WAY: [&str; 9] = [
    "Mounting",
    "RunPodSandbox",
    "PrepareContainer",
    "CreateContainer",
    "StartContainer",
    "PostStartHook",
    "ContainerCreating",
    "Started",
    "InDoubt",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_pull_is_its_last_part() {
        for (message, expected) in [
            (
                "Back-off pulling image \"127.0.0.1:1/a:1\": ErrImagePull: pull image 127.0.0.1:1/a:1: http://127.0.0.1:1/v2/a/manifests/1: \
                 client error (Connect): tcp connect error: Connection refused (os error 111)",
                "Connection refused",
            ),
            ("http://h/v2/a/manifests/1: status 404 Not Found", "status 404 Not Found"),
            ("no colon", "no colon"),
        ] {
            assert_eq!(pull_error(message), expected);
        }
        let start = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start \
                     container process: error during container init: exec: \"/no/such/command\": stat /no/such/command: no such file or \
                     directory: unknown";
        let end = "… runc create failed: unable to start container process: error during container init: exec: \"/no/such/command\": stat /no/such/command: no \
                   such file or directory";
        assert_eq!(last_parts(start), end);
        assert_eq!(last_parts("exec: not found: unknown"), "exec: not found");
        assert_eq!(last_parts(&"x".repeat(500)), shortened(&"x".repeat(500)));
        assert_eq!(shortened(&"x".repeat(500)).chars().count(), MESSAGE_MAX + 1);
    }
}
