//! The same manifests under this agent and under the Go kubelet, one after the other on one containerd: what the two say of their
//! pods is compared field by field, and so is what they write on them in the runtime.

#[expect(dead_code, reason = "of the suite only its beds and its cases are used here")]
mod suite;

#[path = "compare/accepted.rs"]
mod accepted;
#[path = "compare/cases.rs"]
mod cases;
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

use accepted::Difference;
use fields::Fields;
use settled::settled;
use suite::Bed;

#[test]
fn pods_get_the_statuses_the_go_kubelet_gives_them() {
    let mut bed = Bed::start(Flavor::V2);
    let cases = cases::all();
    let began = Instant::now();
    for case in &cases {
        bed.put(case.name, &case.spec);
    }
    let mut ours = settled("podwright", &cases, "-node", || bed.agent.pods());
    add_objects(&mut ours, &bed, &bed.agent.pods().expect("it answers"));
    println!("podwright: {} pods settled after {:.1?}", cases.len(), began.elapsed());
    for case in &cases {
        bed.remove(case.name);
    }
    bed.wait_nothing_left();
    bed.agent.sigterm().expect("it ends");

    for case in &cases {
        bed.put(case.name, &case.spec);
    }
    let began = Instant::now();
    let kubelet = GoKubelet::start_standalone(&bed.scratch, &bed.containerd, "node", &json!({})).expect("it starts");
    let mut theirs = settled("the Go kubelet", &cases, "-node", || kubelet.pods());
    add_objects(&mut theirs, &bed, &kubelet.pods().expect("it answers"));
    println!("the Go kubelet: {} pods settled after {:.1?}", cases.len(), began.elapsed());
    drop(kubelet);

    let (mut wrong, mut rules) = (vec![], BTreeSet::new());
    let (mut fields, mut accepted) = (0, 0);
    for case in &cases {
        let (ours, theirs) = (&ours[case.name], &theirs[case.name]);
        for path in ours.keys().chain(theirs.keys().filter(|path| !ours.contains_key(*path))) {
            fields += 1;
            let (here, there) = (ours.get(path), theirs.get(path));
            if here == there {
                continue;
            }
            let text = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
            let line = format!("{} {path}: ours {}, the Go kubelet's {}", case.name, text(here), text(there));
            let difference = Difference { case: case.name, path, ours: here, theirs: there };
            match accepted::why(&difference) {
                Some((rule, why)) => {
                    accepted += 1;
                    if rules.insert(rule) {
                        println!("accepted, for one: {line} ({why})");
                    }
                }
                None => wrong.push(line),
            }
        }
    }
    println!(
        "{fields} fields of {} pods compared: {accepted} differ as accepted, {} wrongly",
        cases.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{} fields differ:\n{}", wrong.len(), wrong.join("\n"));
    let stale = accepted::unused(&rules);
    assert!(stale.is_empty(), "accepted, but no longer seen: {stale:#?}");
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
