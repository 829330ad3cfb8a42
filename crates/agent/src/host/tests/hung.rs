//! A file system that never answers: a FUSE mount whose server reads no request.

use super::*;
use std::ffi::CString;
use std::os::fd::AsRawFd;

use rustix::mount::{MountFlags, mount as mount_syscall};

/// Hangs everyone who asks it something, until it is dropped.
struct Hung {
    server: Option<fs::File>,
    point: PathBuf,
}

impl Hung {
    fn new(point: &Path) -> Self {
        fs::create_dir_all(point).unwrap();
        let server = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = CString::new(options).unwrap();
        mount_syscall("hung", point, "fuse", MountFlags::empty(), options.as_c_str()).unwrap();
        Self { server: Some(server), point: point.into() }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Without its server the kernel fails every request, also those under way.
        self.server = None;
        let _ = mount::detach(&self.point);
    }
}

#[tokio::test]
async fn a_dead_mount_in_a_pod_goes_and_nobody_waits_for_it() {
    let bed = Bed::new();
    let sick = pod(json!([{"name": "data", "emptyDir": {}}]));
    bed.set_up(&sick, &["data"]).await;
    let point = volume_host_path(bed.host.paths(), &sick, "data").unwrap().join("dead");
    let hung = Hung::new(&point);
    // Proof that it hangs.
    let proof = point.clone();
    let asked = bed.host.io.pool.run("proof", Duration::from_millis(200), move || fs::metadata(&proof).is_ok()).await;
    assert!(matches!(asked, Err(PoolError::Timeout { .. })), "{asked:?}");

    let begun = Instant::now();
    assert!(bed.host.dirs().remove("u1", LIMIT).await.is_err(), "not while it is mounted");
    bed.host.volumes().remove("u1", LIMIT).await.unwrap();
    bed.host.dirs().remove("u1", LIMIT).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(bed.mounts(), 0);
    drop(hung);
}

#[tokio::test]
async fn a_dead_host_path_delays_no_other_pod() {
    let bed = Bed::new();
    let hung = Hung::new(&bed.at("dead"));
    let path = bed.at("dead/data");
    let sick = pod(json!([{"name": "x", "hostPath": {"path": path, "type": "Directory"}}]));
    let short = Duration::from_millis(100);
    for _ in 0..2 {
        let error = bed.host.volumes().mount(&sick, "x", short).await.unwrap_err();
        assert!(error.in_doubt() && error.reason() == "FailedMount", "{error:?}");
    }
    let begun = Instant::now();
    let error = bed.host.volumes().mount(&sick, "x", LIMIT).await.unwrap_err();
    assert!(!error.in_doubt() && begun.elapsed() < Duration::from_secs(5), "refused at once: {error:?}");
    assert!(error.message().contains("hangs"), "{error}");

    let well = pod(json!([{"name": "data", "emptyDir": {}},
        {"name": "h", "hostPath": {"path": bed.at("fine"), "type": "DirectoryOrCreate"}}]));
    let begun = Instant::now();
    bed.set_up(&well, &["data", "h"]).await;
    bed.prepare(&well, 0, &[(0, "h", "sub")]).await.unwrap();
    bed.host.volumes().remove("u1", LIMIT).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));

    assert_eq!(bed.host.io.pool.stuck(), 2);
    drop(hung);
    for _ in 0..1000 {
        if bed.host.io.pool.stuck() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the threads did not come back");
}
