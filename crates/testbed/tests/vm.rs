//! The testbed on a machine with cgroup v2 only.

use podwright_testbed::{Containerd, Flavor, Scratch, image, leftovers};

#[test]
fn a_container_runs_in_the_v2_tree_and_nothing_is_left() {
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, Flavor::Debian16).expect("containerd starts");
    let said = containerd.ctr_run(image::BUSYBOX, "one", &["cat", "/proc/self/cgroup"]).expect("it runs");
    assert!(said.starts_with("0::/"), "only v2: {said}");
    assert_eq!(leftovers(&scratch, &containerd).expect("looked"), Vec::<String>::new());
}
