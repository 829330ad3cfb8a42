//! The same manifests under this agent and under the Go kubelet, one after the other on one containerd: what the two say of their
//! pods is compared field by field, and so is what they write on them in the runtime.

#[expect(dead_code, reason = "of the suite only its beds and its cases are used here")]
mod suite;

#[path = "compare/accepted.rs"]
mod accepted;
#[path = "compare/cases.rs"]
mod cases;
#[path = "compare/difference.rs"]
mod difference;
#[path = "compare/everywhere.rs"]
mod everywhere;
#[path = "compare/fields.rs"]
mod fields;
#[path = "compare/objects.rs"]
mod objects;
#[path = "compare/settled.rs"]
mod settled;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use podwright_testbed::{Flavor, GoKubelet};
use serde_json::{Value, json};

use accepted::ACCEPTED;
use cases::Compared;
use fields::Fields;
use settled::{running, settled};
use suite::Bed;

#[test]
fn pods_get_the_statuses_the_go_kubelet_gives_them() {
    let mut bed = Bed::start(Flavor::V2);
    let cases = cases::all();
    let began = Instant::now();
    put(&bed, &cases, true);
    running("podwright", &cases, "-node", || bed.agent.pods());
    put(&bed, &cases, false);
    let mut ours = settled("podwright", &cases, "-node", || bed.agent.pods());
    add_objects(&mut ours, &bed, &bed.agent.pods().expect("it answers"));
    println!("podwright: {} pods settled after {:.1?}", cases.len(), began.elapsed());
    for case in &cases {
        bed.remove(case.name);
    }
    bed.wait_nothing_left();
    bed.agent.sigterm().expect("it ends");

    put(&bed, &cases, true);
    let began = Instant::now();
    let kubelet = GoKubelet::start_standalone(&bed.scratch, &bed.containerd, "node", &json!({})).expect("it starts");
    running("the Go kubelet", &cases, "-node", || kubelet.pods());
    put(&bed, &cases, false);
    let mut theirs = settled("the Go kubelet", &cases, "-node", || kubelet.pods());
    add_objects(&mut theirs, &bed, &kubelet.pods().expect("it answers"));
    println!("the Go kubelet: {} pods settled after {:.1?}", cases.len(), began.elapsed());
    drop(kubelet);

    let rules = everywhere::and(ACCEPTED);
    let (mut wrong, mut used, mut fields) = (vec![], BTreeSet::new(), 0);
    for case in &cases {
        let (count, lines) = difference::compare(case.name, &ours[case.name], &theirs[case.name], &rules, &mut used);
        fields += count;
        wrong.extend(lines);
    }
    println!(
        "{fields} fields of {} pods compared: {} rules used, {} differ wrongly",
        cases.len(),
        used.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{} fields differ:\n{}", wrong.len(), wrong.join("\n"));
    let stale = difference::stale(&rules, &used);
    assert!(stale.is_empty(), "accepted, but no longer seen: {stale:#?}");
}

/// Those that hurry, or all others.
fn put(bed: &Bed, cases: &[Compared], hurry: bool) {
    for case in cases.iter().filter(|case| case.hurries() == hurry) {
        bed.put(case.name, &case.spec);
    }
}

/// What the pods that run have in the runtime is compared too.
fn add_objects(fields: &mut BTreeMap<&'static str, Fields>, bed: &Bed, pods: &Value) {
    for name in objects::COMPARED {
        let full = format!("{name}-node");
        let pod = pods["items"].as_array().into_iter().flatten().find(|p| p["metadata"]["name"] == full);
        let found = objects::of(bed, pod.expect("it runs"));
        fields.get_mut(name).expect("a case of that name").extend(found);
    }
}
