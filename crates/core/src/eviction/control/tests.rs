//! Lists of readings, and what follows.

use super::*;
use crate::eviction::ThresholdValue;
use crate::model::SignalReading;

const GIB: i64 = 1 << 30;

struct Bench {
    eviction: Eviction,
    config: EvictionConfig,
    seq: Seq,
    now: Time,
}

fn threshold(signal: Signal, gib: i64, grace: u64) -> Threshold {
    let value = ThresholdValue::Quantity(crate::quantity::Amount::from_bytes(gib * GIB));
    Threshold { signal, value, min_reclaim: None, grace: Duration::from_secs(grace) }
}

fn bench(thresholds: &[Threshold]) -> Bench {
    let config = EvictionConfig {
        thresholds: thresholds.to_vec(),
        transition_period: Duration::from_secs(300),
        ..EvictionConfig::default()
    };
    Bench { eviction: Eviction::default(), config, seq: Seq::default(), now: Duration::from_secs(1000) }
}

impl Bench {
    /// The next reading when it is due: what it must have of pods, and the action.
    fn read(&mut self, signals: &[(Signal, i64)]) -> (PodReading, Action) {
        self.read_on(Some(DiskLayout::Shared), signals)
    }

    fn read_on(&mut self, layout: Option<DiskLayout>, signals: &[(Signal, i64)]) -> (PodReading, Action) {
        self.now = self.now.max(self.eviction.wake(&self.config).expect("a reading is due"));
        let (seq, pods) =
            self.eviction.begin(&self.config, || false, &mut self.seq, self.now).expect("a reading is due");
        assert!(self.eviction.arrived(seq) && !self.eviction.arrived(seq));
        let reading = NodeReading { layout, ..self.reading(signals, pods) };
        self.eviction.observe(&reading, &self.config, self.now);
        let action = self.eviction.decide(&reading, self.now);
        if let Action::Evict { threshold, .. } = &action {
            self.eviction.evicting(&"victim".into(), &threshold.clone(), &reading, self.now);
        }
        (pods, action)
    }

    fn reading(&self, signals: &[(Signal, i64)], pods: PodReading) -> NodeReading {
        let reading = |gib: i64| SignalReading { available: gib * GIB, capacity: 100 * GIB, at: self.now };
        NodeReading {
            signals: signals.iter().map(|(signal, gib)| (*signal, reading(*gib))).collect(),
            layout: Some(DiskLayout::Shared),
            pods: (pods != PodReading::None).then(BTreeMap::new),
        }
    }

    fn after(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

fn evicted_for(action: &Action) -> Option<Signal> {
    match action {
        Action::Evict { threshold, .. } => Some(threshold.signal),
        _ => None,
    }
}

const MEMORY: Signal = Signal::MemoryAvailable;
const DISK: Signal = Signal::NodeFsAvailable;

#[test]
fn without_thresholds_and_limits_nothing_is_read() {
    let mut bench = bench(&[]);
    assert_eq!(bench.eviction.wake(&bench.config), None);
    assert_eq!(bench.eviction.begin(&bench.config, || true, &mut bench.seq, bench.now), None);
    bench.config.storage_limits = true;
    let read = bench.eviction.begin(&bench.config, || true, &mut bench.seq, bench.now);
    assert_eq!(read.map(|(_, pods)| pods), Some(PodReading::All));
}

#[test]
fn memory_is_read_every_ten_seconds_and_pods_only_when_one_is_to_be_evicted() {
    let mut bench = bench(&[threshold(MEMORY, 1, 0)]);
    assert_eq!(bench.read(&[(MEMORY, 2)]), (PodReading::None, Action::None));
    let before = bench.now;
    assert_eq!(bench.read(&[(MEMORY, 0)]), (PodReading::None, Action::None));
    assert_eq!(bench.now, before + PERIOD);
    assert_eq!(bench.eviction.pressures(), &BTreeSet::from([NodePressure::Memory]));
    let before = bench.now;
    let (pods, action) = bench.read(&[(MEMORY, 0)]);
    assert_eq!((pods, evicted_for(&action), bench.now), (PodReading::Memory, Some(MEMORY), before), "at once");
    bench.after(1);
    bench.eviction.hint(bench.now);
    assert_eq!(bench.read(&[(MEMORY, 0)]).1, Action::None, "the end of the pod is waited for");
    bench.eviction.ended(&"other".into(), bench.now);
    bench.eviction.ended(&"victim".into(), bench.now);
    bench.after(1);
    assert_eq!(bench.read(&[(MEMORY, 0)]).1, Action::None);
    assert_eq!(evicted_for(&bench.read(&[(MEMORY, 0)]).1), Some(MEMORY), "still short: the next one");
    bench.after(30);
    bench.read(&[(MEMORY, 0)]);
    assert_eq!(evicted_for(&bench.read(&[(MEMORY, 0)]).1), Some(MEMORY), "a pod that does not end");
}

#[test]
fn a_soft_threshold_has_a_grace_period_and_a_hard_one_does_not_wait_for_it() {
    let (hard, soft) = (threshold(MEMORY, 1, 0), threshold(MEMORY, 2, 60));
    let mut bench = bench(&[hard, soft.clone()]);
    for _ in 0..6 {
        assert_eq!(bench.read(&[(MEMORY, 1)]).1, Action::None);
        assert_eq!(bench.eviction.pressures().len(), 1, "the condition holds from the first reading on");
    }
    bench.read(&[(MEMORY, 1)]);
    let action = bench.read(&[(MEMORY, 1)]).1;
    assert_eq!(action, Action::Evict { threshold: soft.clone(), met: vec![soft], reclaimed: false });
    assert_eq!(bench.read(&[(MEMORY, 1)]).1, Action::None);
    bench.read(&[(MEMORY, 0)]);
    let Action::Evict { threshold, met, .. } = bench.read(&[(MEMORY, 0)]).1 else { panic!("hard") };
    assert!(threshold.is_hard() && met.len() == 2);
}

#[test]
fn a_grace_period_begins_again_when_the_threshold_was_not_met_in_between() {
    let mut bench = bench(&[threshold(MEMORY, 2, 60)]);
    for available in [1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1] {
        assert_eq!(bench.read(&[(MEMORY, available)]), (PodReading::None, Action::None));
    }
    assert_eq!(bench.read(&[(MEMORY, 1)]).1, Action::None);
    assert_eq!(evicted_for(&bench.read(&[(MEMORY, 1)]).1), Some(MEMORY));
}

#[test]
fn disk_space_is_reclaimed_before_a_pod_is_evicted() {
    let mut bench = bench(&[threshold(DISK, 10, 0)]);
    let reclaim = Action::Reclaim(StarvedResource::EphemeralStorage);
    assert_eq!(bench.read(&[(DISK, 5)]).1, reclaim);
    assert!(bench.eviction.is_removing_containers());
    assert_eq!(bench.eviction.next_removal(true, &mut bench.seq, bench.now), None, "containers first");
    assert_eq!(bench.read(&[(DISK, 5)]).1, Action::None, "it is being reclaimed");
    let seq = bench.eviction.next_removal(false, &mut bench.seq, bench.now).expect("images follow");
    assert_eq!(bench.read(&[(DISK, 5)]).1, Action::None);
    bench.eviction.images_removed(Seq::default(), bench.now);
    assert_eq!(bench.read(&[(DISK, 5)]).1, Action::None, "another removal");
    bench.eviction.images_removed(seq, bench.now);
    let before = bench.now;
    assert_eq!(bench.read(&[(DISK, 20)]), (PodReading::Fresh, Action::None), "enough was freed");
    assert_eq!(bench.now, before, "measured at once");
    assert_eq!(bench.read(&[(DISK, 20)]).1, Action::None);
    // The next time it does not help.
    assert_eq!(bench.read(&[(DISK, 5)]).1, reclaim);
    let seq = bench.eviction.next_removal(false, &mut bench.seq, bench.now).expect("images follow");
    bench.eviction.images_removed(seq, bench.now);
    assert_eq!(evicted_for(&bench.read(&[(DISK, 5)]).1), Some(DISK));
}

#[test]
fn dead_containers_that_cannot_be_removed_are_not_waited_for_forever() {
    let mut bench = bench(&[threshold(DISK, 10, 0)]);
    bench.read(&[(DISK, 5)]);
    bench.after(14);
    assert_eq!(bench.eviction.next_removal(true, &mut bench.seq, bench.now), None);
    bench.after(1);
    assert!(bench.eviction.next_removal(true, &mut bench.seq, bench.now).is_some());
}

#[test]
fn memory_is_not_delayed_by_the_removal_of_images() {
    let mut bench = bench(&[threshold(DISK, 10, 0), threshold(MEMORY, 1, 0)]);
    assert_eq!(bench.read(&[(DISK, 5), (MEMORY, 2)]).1, Action::Reclaim(StarvedResource::EphemeralStorage));
    bench.eviction.next_removal(false, &mut bench.seq, bench.now);
    bench.read(&[(DISK, 5), (MEMORY, 0)]);
    assert_eq!(evicted_for(&bench.read(&[(DISK, 5), (MEMORY, 0)]).1), Some(MEMORY));
    assert_eq!(bench.read(&[(MEMORY, 2)]).1, Action::None, "a file system that hangs is not read and not acted on");
}

#[test]
fn enough_is_freed_when_the_minimum_is_reclaimed_of_that_resource_only() {
    let more = ThresholdValue::Quantity(crate::quantity::Amount::from_bytes(5 * GIB));
    let disk = Threshold { min_reclaim: Some(more), ..threshold(DISK, 10, 0) };
    let mut bench = bench(&[disk, threshold(Signal::PidAvailable, 1, 0)]);
    bench.read(&[(DISK, 5)]);
    let seq = bench.eviction.next_removal(false, &mut bench.seq, bench.now).expect("images");
    bench.eviction.images_removed(seq, bench.now);
    assert_eq!(evicted_for(&bench.read(&[(DISK, 12)]).1), Some(DISK), "above the threshold, below the minimum");
    bench.eviction.ended(&"victim".into(), bench.now);
    bench.after(1);
    assert_eq!(bench.read(&[(DISK, 15), (Signal::PidAvailable, 3)]).1, Action::None);
    assert_eq!(bench.read(&[(DISK, 12)]).1, Action::None, "it was resolved");
}

#[test]
fn the_kernel_cannot_make_readings_more_frequent_than_five_a_second() {
    let mut bench = bench(&[threshold(MEMORY, 1, 0)]);
    bench.read(&[(MEMORY, 2)]);
    let begun = bench.now;
    bench.eviction.hint(bench.now);
    assert_eq!(bench.eviction.wake(&bench.config), Some(begun + INTERVAL_MIN));
    bench.after(3);
    bench.eviction.hint(bench.now);
    assert_eq!(bench.eviction.wake(&bench.config), Some(begun + INTERVAL_MIN), "the earlier one stands");
}

#[test]
fn what_is_reclaimed_follows_from_the_file_systems() {
    use DiskLayout::{SeparateImages, Shared, SplitLayers};
    let table = [
        (Signal::MemoryAvailable, Shared, None),
        (Signal::PidAvailable, Shared, None),
        (Signal::NodeFsAvailable, Shared, Some((true, true))),
        (Signal::ImageFsInodesFree, Shared, Some((true, true))),
        (Signal::NodeFsAvailable, SeparateImages, None),
        (Signal::NodeFsInodesFree, SeparateImages, None),
        (Signal::ImageFsAvailable, SeparateImages, Some((true, true))),
        (Signal::ContainerFsAvailable, SeparateImages, Some((true, true))),
        (Signal::ImageFsAvailable, SplitLayers, Some((false, true))),
        (Signal::NodeFsAvailable, SplitLayers, Some((true, false))),
        (Signal::ContainerFsInodesFree, SplitLayers, Some((true, false))),
    ];
    for (signal, layout, expected) in table {
        assert_eq!(removals(signal, layout), expected, "{signal:?} {layout:?}");
    }
}

#[test]
fn nothing_is_done_for_a_disk_while_the_file_systems_are_unknown() {
    let mut bench = bench(&[threshold(DISK, 1, 0), threshold(MEMORY, 1, 0)]);
    for _ in 0..3 {
        assert_eq!(bench.read_on(None, &[(DISK, 0), (MEMORY, 2)]), (PodReading::None, Action::None));
        assert_eq!(bench.eviction.pressures(), &BTreeSet::from([NodePressure::Disk]), "no pod is admitted");
    }
    bench.read_on(None, &[(DISK, 0), (MEMORY, 0)]);
    assert_eq!(evicted_for(&bench.read_on(None, &[(DISK, 0), (MEMORY, 0)]).1), Some(MEMORY));
    let known = bench.read(&[(DISK, 0), (MEMORY, 2)]);
    assert_eq!(known.1, Action::Reclaim(StarvedResource::EphemeralStorage));
}

#[test]
fn pods_that_cannot_be_read_are_not_read_again_at_once() {
    let mut bench = bench(&[threshold(MEMORY, 1, 0)]);
    bench.read(&[(MEMORY, 0)]);
    for _ in 0..2 {
        let (seq, pods) = bench.eviction.begin(&bench.config, || false, &mut bench.seq, bench.now).expect("due");
        assert_eq!((bench.eviction.arrived(seq), pods), (true, PodReading::Memory));
        let unread = bench.reading(&[(MEMORY, 0)], PodReading::None);
        bench.eviction.observe(&unread, &bench.config, bench.now);
        assert_eq!(bench.eviction.decide(&unread, bench.now), Action::None);
        assert_eq!(bench.eviction.wake(&bench.config), Some(bench.now + PERIOD));
        bench.now += PERIOD;
    }
}

#[test]
fn the_end_of_a_pod_is_awaited_for_bytes_and_inodes_alike() {
    const INODES: Signal = Signal::NodeFsInodesFree;
    let mut bench = bench(&[threshold(DISK, 10, 0), threshold(INODES, 10, 0), threshold(MEMORY, 1, 0)]);
    let full = [(DISK, 5), (INODES, 5)];
    assert!(matches!(bench.read(&full).1, Action::Reclaim(_)));
    let seq = bench.eviction.next_removal(false, &mut bench.seq, bench.now).expect("images follow");
    bench.eviction.images_removed(seq, bench.now);
    assert!(evicted_for(&bench.read(&full).1).is_some());
    assert_eq!(bench.read(&full).1, Action::None, "the files of the pod are being removed");
    bench.read(&[(DISK, 5), (INODES, 5), (MEMORY, 0)]);
    assert_eq!(evicted_for(&bench.read(&[(MEMORY, 0)]).1), Some(MEMORY), "memory does not wait for the disk");
}
