//! Messages in the status and the event of an evicted pod.

use super::threshold::Threshold;
use crate::model::{Container, ContainerUsage, Pod, PodUsage, SignalReadings, StarvedResource, spec_of};
use crate::qos::container_requests;
use crate::quantity::Amount;

/// The reason of the status and of the event.
pub const EVICTED: &str = "Evicted";

/// The message of the status, and the annotations of the event (Go kubelet: `evictionMessage`).
pub fn eviction_message(
    resource: StarvedResource,
    pod: &Pod,
    usage: Option<&PodUsage>,
    met: &[Threshold],
    readings: &SignalReadings,
) -> (String, Vec<(&'static str, String)>) {
    let name = resource.as_str();
    let mut message = format!("The node was low on resource: {name}. ");
    let of_resource = |t: &&Threshold| t.signal.resource() == resource && readings.contains_key(&t.signal);
    if let Some(threshold) = met.iter().find(of_resource) {
        let reading = &readings[&threshold.signal];
        let (quantity, available) = (threshold.value.of(reading.capacity), reading.amount(threshold.signal));
        message += &format!("Threshold quantity: {quantity}, available: {available}. ");
    }
    let Some(usage) = usage else { return (message, vec![]) };
    let mut annotations = vec![];
    if let Some((used, request)) = pod_level_memory(resource, pod, usage) {
        let pod = pod.metadata.name.as_deref().unwrap_or_default();
        message += &format!("Pod {pod} was using {used}, request is {request}, has larger consumption of {name}. ");
        annotations.extend([("offending_pod", pod.to_owned()), ("offending_pod_usage", used.to_string())]);
    }
    let (mut containers, mut amounts) = (vec![], vec![]);
    for (container, used) in
        usage.containers.iter().filter_map(|c| Some((container(pod, &c.name)?, used(c, resource)?)))
    {
        let request = container_requests(container).get(name).copied().unwrap_or(Amount::ZERO);
        if used > request {
            let container = &container.name;
            message += &format!(
                "Container {container} was using {used}, request is {request}, has larger consumption of {name}. "
            );
            containers.push(container.clone());
            amounts.push(used.to_string());
        }
    }
    annotations.extend([
        ("offending_containers", containers.join(",")),
        ("offending_containers_usage", amounts.join(",")),
        ("starved_resource", name.to_owned()),
    ]);
    (message, annotations)
}

/// The memory of a pod with a request of its own.
fn pod_level_memory(resource: StarvedResource, pod: &Pod, usage: &PodUsage) -> Option<(Amount, Amount)> {
    let requests = spec_of(pod).resources.as_ref()?.requests.as_ref()?;
    let request = Amount::try_from(requests.get("memory").filter(|_| resource == StarvedResource::Memory)?).ok()?;
    Some((bytes(usage.memory?), request))
}

/// An ephemeral container has no requests and would always be named.
fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = spec_of(pod);
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|container| container.name == name)
}

fn used(container: &ContainerUsage, resource: StarvedResource) -> Option<Amount> {
    match resource {
        StarvedResource::Memory => container.memory.map(bytes),
        StarvedResource::EphemeralStorage => Some(bytes(container.rootfs?.bytes.saturating_add(container.logs?.bytes))),
        StarvedResource::Inodes | StarvedResource::Pids => None,
    }
}

fn bytes(count: u64) -> Amount {
    Amount::from_bytes(i64::try_from(count).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::super::ThresholdValue;
    use super::*;
    use crate::model::{DiskAmount, Signal, SignalReading};

    fn pod() -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "a", "resources": {"requests": {"memory": "1Mi", "ephemeral-storage": "1Ki"}}}, {"name": "b"}],
            "initContainers": [{"name": "side", "restartPolicy": "Always"}],
            "ephemeralContainers": [{"name": "debug"}]}}))
        .unwrap()
    }

    fn container(name: &str, memory: u64, disk: u64) -> ContainerUsage {
        let disk = Some(DiskAmount { bytes: disk, inodes: 1 });
        ContainerUsage { name: name.into(), memory: Some(memory), rootfs: disk, logs: disk }
    }

    fn usage() -> PodUsage {
        let containers = vec![
            container("a", 2 << 20, 512),
            container("b", 0, 4096),
            container("side", 1, 0),
            container("debug", 9, 9),
        ];
        PodUsage { memory: Some(3 << 20), containers, ..PodUsage::default() }
    }

    fn met(signal: Signal, value: ThresholdValue) -> (Vec<Threshold>, SignalReadings) {
        let reading = SignalReading { available: 1536, capacity: 100_000, at: Duration::ZERO };
        let threshold = Threshold { signal, value, min_reclaim: None, grace: Duration::ZERO };
        (vec![threshold], SignalReadings::from([(signal, reading)]))
    }

    #[test]
    fn containers_above_their_request_are_named() {
        let (thresholds, readings) =
            met(Signal::MemoryAvailable, ThresholdValue::Quantity("100Mi".parse().expect("valid")));
        let (message, annotations) =
            eviction_message(StarvedResource::Memory, &pod(), Some(&usage()), &thresholds, &readings);
        let expected = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 1536. \
                        Container a was using 2Mi, request is 1Mi, has larger consumption of memory. \
                        Container side was using 1, request is 0, has larger consumption of memory. ";
        assert_eq!(message, expected);
        let expected = [
            ("offending_containers", "a,side"),
            ("offending_containers_usage", "2Mi,1"),
            ("starved_resource", "memory"),
        ];
        assert_eq!(annotations, expected.map(|(key, value)| (key, value.to_owned())));
    }

    #[test]
    fn disk_usage_of_a_container_is_its_layer_and_its_logs() {
        let (thresholds, readings) = met(Signal::NodeFsAvailable, ThresholdValue::Fraction(0.1));
        let (message, _) =
            eviction_message(StarvedResource::EphemeralStorage, &pod(), Some(&usage()), &thresholds, &readings);
        let expected = "The node was low on resource: ephemeral-storage. Threshold quantity: 10000, available: 1536. \
                        Container b was using 8Ki, request is 0, has larger consumption of ephemeral-storage. ";
        assert_eq!(message, expected);
        let (thresholds, readings) = met(Signal::PidAvailable, ThresholdValue::Quantity("2k".parse().expect("valid")));
        let (message, annotations) =
            eviction_message(StarvedResource::Pids, &pod(), Some(&usage()), &thresholds, &readings);
        assert_eq!(message, "The node was low on resource: pids. Threshold quantity: 2k, available: 1536. ");
        assert_eq!(annotations.len(), 3);
        let (message, annotations) = eviction_message(StarvedResource::Inodes, &pod(), None, &thresholds, &readings);
        assert_eq!((message.as_str(), annotations.len()), ("The node was low on resource: inodes. ", 0));
    }

    #[test]
    fn a_pod_with_a_memory_request_of_its_own_is_named() {
        let mut pod = pod();
        let requests = serde_json::from_value(json!({"requests": {"memory": "1Mi"}})).unwrap();
        pod.spec.as_mut().unwrap().resources = Some(requests);
        let (thresholds, readings) = met(Signal::MemoryAvailable, ThresholdValue::Fraction(0.1));
        let (message, annotations) =
            eviction_message(StarvedResource::Memory, &pod, Some(&usage()), &thresholds, &readings);
        assert!(
            message.contains("Pod p was using 3Mi, request is 1Mi, has larger consumption of memory. "),
            "{message}"
        );
        assert_eq!(annotations[0], ("offending_pod", "p".to_owned()));
    }
}
