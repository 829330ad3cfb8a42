use super::*;

#[test]
fn calls_and_lists_are_counted_under_the_names_of_the_kubelet() {
    let metrics = Metrics::default();
    let call = Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 });
    metrics.record_call_start(&call, &Pod::default());
    metrics.record_call_end(operation(&call).expect("a runtime call"), Duration::from_millis(70), true);
    metrics.record_relist(Duration::from_millis(3));
    assert_eq!(operation(&podwright_core::model::HostCall::MakeDirs.into()), None);
    let text = metrics.text(&[]);
    for line in [
        "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1",
        "kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"} 1",
        "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",le=\"0.1\"} 1",
        "kubelet_pleg_relist_duration_seconds_count 1",
        "kubelet_pleg_relist_interval_seconds_count 0",
        "kubelet_started_pods_errors_total 1",
        "kubelet_desired_pods{static=\"true\"} 0",
        "kubelet_active_pods{static=\"\"} 0",
        "kubelet_started_pods_total 1",
        "podwright_stuck_pods{reason=\"FailedSync\"} 0",
        "kubelet_running_pods 0",
        "kubelet_running_containers{container_state=\"running\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let resident = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
    assert!(resident.and_then(|bytes| bytes.parse::<u64>().ok()).is_some_and(|bytes| bytes > 1 << 20), "{text}");
}

#[test]
fn containers_are_counted_by_type_and_pod_starts_use_the_buckets_of_the_kubelet() {
    let metrics = Metrics::default();
    let pod = serde_json::json!({"metadata": {}, "spec": {
        "initContainers": [{"name": "i"}], "containers": [{"name": "c"}]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let types: Vec<&str> = ["i", "c", "debug"].map(|name| container_type(&pod, name)).into();
    assert_eq!(types, ["init_container", "container", "ephemeral_container"]);
    assert!(metrics.text(&[]).contains("kubelet_pod_start_duration_seconds_bucket{le=\"3600\"} 0"));
}
