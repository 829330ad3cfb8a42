use super::*;
use crate::model::SignalReading;

fn threshold(signal: Signal, value: ThresholdValue, min_reclaim: Option<ThresholdValue>) -> Threshold {
    Threshold { signal, value, min_reclaim, grace: Duration::ZERO }
}

fn quantity(text: &str) -> ThresholdValue {
    ThresholdValue::Quantity(text.parse().unwrap())
}

fn readings(all: &[(Signal, &str, &str)]) -> SignalReadings {
    let value = |text: &str| text.parse::<Amount>().unwrap().value();
    let reading = |(signal, available, capacity): &(Signal, &str, &str)| {
        (*signal, SignalReading { available: value(available), capacity: value(capacity), at: Duration::ZERO })
    };
    all.iter().map(reading).collect()
}

/// Kubernetes: `TestThresholdsMet`.
#[test]
fn a_threshold_is_met_below_it_and_until_the_minimum_is_reclaimed() {
    let hard = threshold(Signal::MemoryAvailable, quantity("1Gi"), Some(quantity("500Mi")));
    let table = [
        ("500Mi", false, true),
        ("1Gi", false, false),
        ("2Gi", false, false),
        ("1.05Gi", true, true),
        ("1524Mi", true, false),
        ("2Gi", true, false),
    ];
    for (available, to_reclaim, met) in table {
        let readings = readings(&[(Signal::MemoryAvailable, available, "10Gi")]);
        assert_eq!(hard.is_met(&readings, to_reclaim), met, "{available} {to_reclaim}");
    }
    assert!(!hard.is_met(&SignalReadings::new(), true), "a signal that could not be read");
}

/// Kubernetes: `TestPercentageThresholdsMet`.
#[test]
fn percentages_are_of_the_observed_capacity() {
    let memory =
        threshold(Signal::MemoryAvailable, ThresholdValue::Fraction(0.2), Some(ThresholdValue::Fraction(0.05)));
    let disk = threshold(Signal::NodeFsAvailable, ThresholdValue::Fraction(0.3), None);
    let all = [memory.clone(), disk.clone()];
    let read = |memory: &str, disk: &str| {
        readings(&[(Signal::MemoryAvailable, memory, "1000Mi"), (Signal::NodeFsAvailable, disk, "1000Gi")])
    };
    assert_eq!(thresholds_met(&all, &[], &read("100Mi", "100Gi")), all);
    assert_eq!(thresholds_met(&all, &[], &read("300Mi", "400Gi")), []);
    assert_eq!(thresholds_met(&all, &[], &read("300Mi", "100Gi")), std::slice::from_ref(&disk));
    assert_eq!(thresholds_met(&all, &[], &read("100Mi", "400Gi")), std::slice::from_ref(&memory));
    let before = std::slice::from_ref(&memory);
    assert_eq!(thresholds_met(&all, before, &read("225Mi", "400Gi")), before, "the minimum is not reclaimed");
    assert_eq!(thresholds_met(&all, &[], &read("225Mi", "400Gi")), [], "it was not met before");
    assert_eq!(thresholds_met(&all, before, &read("300Mi", "400Gi")), []);
    assert_eq!(disk.value.of(1 << 40).to_string(), "322122560Ki", "computed in double precision from a single one");
}

#[test]
fn the_file_system_of_writable_layers_has_the_thresholds_of_the_one_it_is_on() {
    let node = threshold(Signal::NodeFsAvailable, ThresholdValue::Fraction(0.1), Some(quantity("1Mi")));
    let image = threshold(Signal::ImageFsInodesFree, ThresholdValue::Fraction(0.15), None);
    let soft = Threshold { grace: Duration::from_secs(60), ..node.clone() };
    let ignored = threshold(Signal::ContainerFsAvailable, ThresholdValue::Fraction(0.9), None);
    let all = [node.clone(), image.clone(), soft.clone(), ignored];
    let added = |layout| with_container_fs(&all, layout)[3..].to_vec();
    let of_node = |t: &Threshold| Threshold { signal: Signal::ContainerFsAvailable, ..t.clone() };
    for layout in [DiskLayout::Shared, DiskLayout::SplitLayers] {
        assert_eq!(added(Some(layout)), [of_node(&node), of_node(&soft)]);
    }
    let of_image = Threshold { signal: Signal::ContainerFsInodesFree, ..image };
    assert_eq!(added(Some(DiskLayout::SeparateImages)), [of_image]);
    assert_eq!(added(None), []);
}
