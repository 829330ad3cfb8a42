//! The testbed on a host with cgroup v2 only.

use podwright_testbed::{Containerd, Flavor, Scratch, image, leftovers};

#[test]
fn a_container_runs_in_the_v2_tree_and_nothing_is_left() {
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, Flavor::Debian16).expect("containerd starts");
    let output = containerd.ctr_run(image::BUSYBOX, "one", &["cat", "/proc/self/cgroup"]).expect("it runs");
    assert!(output.starts_with("0::/"), "only v2: {output}");
    assert_eq!(leftovers(&scratch, &containerd).expect("leftovers"), Vec::<String>::new());
}
