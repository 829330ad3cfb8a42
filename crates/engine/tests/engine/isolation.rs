//! What containers can not reach.

use podwright_cri::RuntimeService;

use crate::bed::{Bed, LIMIT, OPEN_FILES};

/// A loop device: opening it changes nothing on the host.
const OPEN_LOOP: &str = "[ -b /loop ] || mknod /loop b 7 0 || exit 2; (exec 3< /loop) 2>&1";

pub(crate) async fn a_container_opens_only_the_devices_that_it_was_given(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    let opened = bed.exec(&id, OPEN_LOOP).await;
    let output = String::from_utf8_lossy(&opened.stdout).into_owned();
    assert!(opened.exit_code == 1 && output.contains("Operation not permitted"), "{} {output}", opened.exit_code);
    let usual = bed.exec(&id, "echo x > /dev/null && head -c 1 /dev/zero && head -c 1 /dev/urandom | wc -c").await;
    assert_eq!(usual.exit_code, 0, "{usual:?}");
    let mut config = bed.container_config("privileged", "exec sleep 1000");
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    let mut pod = bed.sandbox_config("privileged", true);
    pod.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    let pod = bed.run_sandbox(pod).await;
    let privileged = bed.start_config(&pod, config).await;
    let opened = bed.exec(&privileged, OPEN_LOOP).await;
    assert_eq!(opened.exit_code, 0, "{}", String::from_utf8_lossy(&opened.stdout));
    bed.engine().stop_pod_sandbox(&pod, LIMIT).await.unwrap();
}

pub(crate) async fn a_container_has_the_limit_of_open_files_of_the_settings(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "(ulimit -Sn; ulimit -Hn) > /limits; exec sleep 1000").await;
    let limits = bed
        .exec(&id, "until [ $(wc -l < /limits) = 2 ]; do sleep 0.1; done; cat /limits; ulimit -Sn; ulimit -Hn")
        .await;
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let hard = own.maximum.map_or("unlimited".to_owned(), |hard| hard.to_string());
    assert!(own.current > Some(OPEN_FILES), "{own:?}");
    assert_eq!(String::from_utf8_lossy(&limits.stdout), format!("{OPEN_FILES}\n{hard}\n").repeat(2), "init, then exec");
    bed.engine().stop_pod_sandbox(&sandbox, LIMIT).await.unwrap();
}
