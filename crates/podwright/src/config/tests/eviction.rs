//! The settings of eviction.

use std::time::Duration;

use podwright_core::eviction::ThresholdValue;
use podwright_core::model::Signal;

use super::*;

/// Signal, value, grace period in seconds, minimum reclaim.
type Row = (&'static str, String, u64, Option<String>);

fn text(value: ThresholdValue) -> String {
    match value {
        ThresholdValue::Quantity(amount) => amount.to_string(),
        ThresholdValue::Fraction(fraction) => format!("{:.0}%", fraction * 100.0),
    }
}

fn thresholds(yaml: &str) -> Vec<Row> {
    let config = load(yaml).unwrap();
    assert_eq!(config.warnings, [""; 0], "{yaml}");
    let thresholds = config.node.eviction.thresholds;
    thresholds.iter().map(|t| (t.signal.as_str(), text(t.value), t.grace.as_secs(), t.min_reclaim.map(text))).collect()
}

fn hard(signal: &'static str, value: &str) -> Row {
    (signal, value.to_owned(), 0, None)
}

#[test]
fn thresholds_are_those_of_the_go_kubelet() {
    let disks = [
        hard("nodefs.available", "10%"),
        hard("nodefs.inodesFree", "5%"),
        hard("imagefs.available", "15%"),
        hard("imagefs.inodesFree", "5%"),
    ];
    let with_memory = |memory: &str| {
        let all = [hard("memory.available", memory)].into_iter().chain(disks.clone());
        all.chain([hard("allocatableMemory.available", memory)]).collect::<Vec<_>>()
    };
    assert_eq!(thresholds(""), with_memory("100Mi"));
    assert_eq!(thresholds("evictionHard: {}"), []);
    assert_eq!(
        thresholds("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true"),
        with_memory("1Gi")
    );
    let alone = "evictionHard: {memory.available: 1Gi, pid.available: 0%}\n";
    let memory = hard("memory.available", "1Gi");
    assert_eq!(thresholds(alone), [memory.clone(), hard("allocatableMemory.available", "1Gi")]);
    assert_eq!(thresholds(&format!("{alone}enforceNodeAllocatable: [none]")), [memory]);
    let soft = "evictionHard: {nodefs.available: 1Gi}\nevictionSoft: {nodefs.available: 20%}\n\
                evictionSoftGracePeriod: {nodefs.available: 1m30s, pid.available: 1s}\n\
                evictionMinimumReclaim: {nodefs.available: 500Mi, memory.available: \"0\"}";
    let reclaim = Some("500Mi".to_owned());
    let expected = [
        ("nodefs.available", "1Gi".to_owned(), 0, reclaim.clone()),
        ("nodefs.available", "20%".to_owned(), 90, reclaim),
    ];
    assert_eq!(thresholds(soft), expected);
}

#[test]
fn other_settings_have_the_defaults_of_the_go_kubelet() {
    let read = |yaml: &str| {
        let eviction = load(yaml).unwrap().node.eviction;
        (eviction.transition_period, eviction.max_pod_grace, eviction.storage_limits)
    };
    let seconds = Duration::from_secs;
    assert_eq!(read(""), (seconds(300), seconds(0), true));
    assert_eq!(read("evictionPressureTransitionPeriod: 0s"), (seconds(300), seconds(0), true));
    let all =
        "evictionPressureTransitionPeriod: 30s\nevictionMaxPodGracePeriod: 60\nlocalStorageCapacityIsolation: false";
    assert_eq!(read(all), (seconds(30), seconds(60), false));
    assert!(Signal::parse("memory.free").is_none());
}

#[test]
fn errors_are_those_of_the_go_kubelet() {
    let table = [
        ("evictionHard: {memory.free: 1Gi}", "evictionHard[memory.free]: unsupported eviction signal memory.free"),
        (
            "evictionHard: {memory.available: '-1'}",
            "evictionHard[memory.available]: eviction threshold memory.available must be positive: -1",
        ),
        (
            "evictionHard: {memory.available: '0'}",
            "evictionHard[memory.available]: eviction threshold memory.available must be positive: 0",
        ),
        (
            "evictionHard: {memory.available: 101%}",
            "evictionHard[memory.available]: eviction percentage threshold memory.available must be <= 100%: 101%",
        ),
        (
            "evictionSoft: {memory.available: '-1%'}",
            "evictionSoft[memory.available]: eviction percentage threshold memory.available must be >= 0%: -1%",
        ),
        ("evictionHard: {memory.available: x%}", "evictionHard[memory.available]: \"x%\" is not a percentage"),
        ("evictionHard: {memory.available: NaN%}", "evictionHard[memory.available]: \"NaN%\" is not a percentage"),
        (
            "evictionSoft: {memory.available: 1Gi}",
            "evictionSoftGracePeriod: grace period must be specified for the soft eviction threshold memory.available",
        ),
        (
            "evictionSoftGracePeriod: {memory.available: -1s}",
            "evictionSoftGracePeriod[memory.available]: invalid eviction grace period specified: -1s, must be a positive value",
        ),
        (
            "evictionSoftGracePeriod: {memory: 1s}",
            "evictionSoftGracePeriod[memory]: unsupported eviction signal memory",
        ),
        (
            "evictionMinimumReclaim: {memory.available: '-1'}",
            "evictionMinimumReclaim[memory.available]: negative eviction minimum reclaim specified for memory.available",
        ),
        (
            "evictionMinimumReclaim: {memory.available: 0%}",
            "evictionMinimumReclaim[memory.available]: eviction percentage minimum reclaim memory.available must be positive: 0%",
        ),
        ("evictionMaxPodGracePeriod: -1", "evictionMaxPodGracePeriod: must be between 0 and"),
    ];
    for (yaml, error) in table {
        let errors = load(yaml).unwrap_err();
        assert!(errors.len() == 1 && errors[0].starts_with(error), "{yaml}: {errors:?}");
    }
}
