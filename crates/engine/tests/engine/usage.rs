//! What pods use, as the CRI's stats and metrics show it.

use std::time::{Duration, Instant};

use podwright_cri::v1;

use crate::bed::{Bed, LIMIT};

/// The value of the only point of a metric, or of the one with this last label.
fn value(metrics: &[v1::Metric], name: &str, last_label: Option<&str>) -> u64 {
    let fits = |metric: &&v1::Metric| {
        metric.name == name && last_label.is_none_or(|label| metric.label_values.last().unwrap() == label)
    };
    let found: Vec<_> = metrics.iter().filter(fits).collect();
    assert_eq!(found.len(), 1, "{name}: {found:?} of {metrics:#?}");
    found[0].value.unwrap().value
}

pub(crate) async fn metrics_are_described_and_show_what_a_pod_uses(mut bed: Bed) {
    // A bridge of an earlier case, whose links the kernel still deletes, has the address of the usual gateway, too.
    bed.end_engine().await;
    bed.configure_ranges(&["10.97.3.0/24"], true);
    bed.start_engine().await;
    let sandbox = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    let mut config = bed.container_config("main", "sleep 1000 & sleep 1000");
    let image = config.image.as_mut().unwrap();
    image.user_specified_image = "the-name-in-the-pod:1".into();
    let linux = config.linux.as_mut().unwrap();
    linux.security_context.as_mut().unwrap().namespace_options.as_mut().unwrap().network =
        v1::NamespaceMode::Pod.into();
    linux.resources.as_mut().unwrap().memory_limit_in_bytes = 64 << 20;
    let id = bed.start_config(&sandbox, config).await;
    // More than a second of CPU time, and packets to the bridge.
    let burn = "while read -r _ _ _ _ _ _ _ _ _ _ _ _ _ user kernel _ </proc/$$/stat && [ $((user + kernel)) -lt 120 ]; do :; done";
    let ping = "for _ in 1 2 3 4 5; do ping -c 3 -W 3 -s 1000 10.97.3.1 && break; done";
    let spent = bed.exec(&id, &format!("{burn}; {ping}")).await;
    assert_eq!(spent.exit_code, 0, "{spent:?}");

    let described = bed.engine().list_metric_descriptors(LIMIT).await.unwrap();
    let pods = bed.engine().list_pod_sandbox_metrics(LIMIT).await.unwrap();
    let [pod] = <[_; 1]>::try_from(pods).expect("one pod");
    let [container] = &pod.container_metrics[..] else { panic!("{:#?}", pod.container_metrics) };
    assert_eq!((&pod.pod_sandbox_id, &container.container_id), (&sandbox, &id));
    for metric in pod.metrics.iter().chain(&container.metrics) {
        let descriptor = described.iter().find(|descriptor| descriptor.name == metric.name).expect("it is described");
        assert_eq!(descriptor.label_keys.len(), metric.label_values.len(), "{}", metric.name);
        assert_eq!(metric.label_values[..2], ["web", "default"], "{}", metric.name);
    }
    let labels = |metrics: &[v1::Metric]| metrics[0].label_values[2..5].to_vec();
    assert_eq!(labels(&container.metrics), ["main", id.as_str(), "the-name-in-the-pod:1"]);
    assert_eq!(labels(&pod.metrics), ["", sandbox.as_str(), ""]);

    let of = |name: &str| value(&container.metrics, name, None);
    assert!(of("container_cpu_usage_seconds_total") >= 1, "{container:#?}");
    assert_eq!(of("container_spec_memory_limit_bytes"), 64 << 20);
    assert!((1..64 << 20).contains(&of("container_memory_working_set_bytes")), "{container:#?}");
    assert_eq!((of("container_processes"), of("container_threads")), (2, 2), "the shell and its child");
    let started = u64::try_from(bed.status(&id).await.started_at).unwrap() / 1_000_000_000;
    assert_eq!(of("container_start_time_seconds"), started);
    assert!(of("container_last_seen") >= started);
    let stats = bed.engine().pod_sandbox_stats(&sandbox, LIMIT).await.unwrap().linux.unwrap();
    let received = value(&pod.metrics, "container_network_receive_bytes_total", Some("eth0"));
    let network = stats.network.unwrap().default_interface.unwrap();
    assert!((3000..=network.rx_bytes.unwrap().value).contains(&received), "{received} of {network:?}");
    assert!(value(&pod.metrics, "container_network_transmit_packets_total", Some("eth0")) >= 3);
    assert!(pod.metrics.iter().all(|metric| metric.label_values.last().unwrap() != "lo"), "{:#?}", pod.metrics);
    assert_eq!(stats.process.unwrap().process_count.unwrap().value, 2);
    assert!(stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value > 1_000_000_000);
    assert!(stats.memory.unwrap().working_set_bytes.unwrap().value > 0);
    assert_eq!(stats.containers[0].attributes.as_ref().unwrap().id, id);
}

pub(crate) async fn pods_that_do_not_run_have_no_metrics(bed: Bed) {
    let (on_host, stopped) = (bed.pod("on-host").await, bed.pod("stopped").await);
    let ended = bed.start(&on_host, "ended", "true").await;
    let runs = bed.start(&on_host, "runs", "exec sleep 1000").await;
    bed.create(&on_host, bed.container_config("created", "true")).await.unwrap();
    bed.start(&stopped, "main", "exec sleep 1000").await;
    bed.exit(&ended).await;
    bed.engine().stop_pod_sandbox(&stopped, LIMIT).await.unwrap();
    let pods = bed.engine().list_pod_sandbox_metrics(LIMIT).await.unwrap();
    let shown: Vec<_> = pods.iter().map(|pod| pod.pod_sandbox_id.as_str()).collect();
    assert_eq!(shown, [on_host.as_str()], "a stopped pod is not shown");
    assert_eq!(pods[0].metrics, [], "the traffic of the host is not the pod's");
    let until = Instant::now() + LIMIT;
    loop {
        // The cgroup of a container that has ended is removed after its exit is shown.
        let pods = bed.engine().list_pod_sandbox_metrics(LIMIT).await.unwrap();
        let shown: Vec<_> = pods[0].container_metrics.iter().map(|container| &container.container_id).collect();
        if shown == [&runs] {
            break;
        }
        assert!(shown.contains(&&runs) && Instant::now() < until, "{shown:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(bed.engine().list_pod_sandbox_stats(None, LIMIT).await.unwrap().len() == 1);
}
